"""Prompt files: every format that people use, read strictly; the problems of a file are told at once."""

from sjdvp.runs.prompts.model import Prompt, PromptSet
from sjdvp.runs.prompts.read import (
    FORMATS,
    inline_prompts,
    read_prompts,
    read_stream,
    stream_prompts,
)

__all__ = ["FORMATS", "Prompt", "PromptSet", "inline_prompts", "read_prompts", "read_stream", "stream_prompts"]
