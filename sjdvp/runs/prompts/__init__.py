"""Prompt files: every shape that people have, read strictly or refused, never taken for another."""

from sjdvp.runs.prompts.model import FORMATS, Prompt, PromptSet, ReadOptions
from sjdvp.runs.prompts.read import inline_prompts, read_prompts, read_stream, stream_prompts

__all__ = [
    "FORMATS",
    "Prompt",
    "PromptSet",
    "ReadOptions",
    "inline_prompts",
    "read_prompts",
    "read_stream",
    "stream_prompts",
]
