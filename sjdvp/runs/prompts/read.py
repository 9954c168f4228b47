"""From a prompt file to a PromptSet: which reader, and the checks that hold for every format."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from sjdvp.runs.prompts.model import Prompt, PromptSet

FORMATS = ("auto", "txt", "tsv", "csv", "jsonl", "json", "coco", "geneval", "dir")


def read_prompts(path: Path, format: str = "auto", column: str | None = None) -> PromptSet:
    """Read a whole prompt file or folder.

    `column` names the column or key that holds the prompt (default: prompt, prompts, caption or text, in any case).
    Raises PromptError that lists every problem with its line.
    """
    raise NotImplementedError


def inline_prompts(texts: Sequence[str]) -> PromptSet:
    """Take prompts given on the command line; raises PromptError for an empty one or one that is not valid text."""
    raise NotImplementedError


def stream_prompts(stream: BinaryIO, format: str = "auto", column: str | None = None) -> Iterator[Prompt]:
    """Yield prompts from a pipe as their lines come in; raises PromptError at the first problem."""
    raise NotImplementedError
