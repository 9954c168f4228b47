"""What reading prompts gives: prompts in row order, and what was left out. Knows no file format."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a prompt file. Its identity is `index` (and `id`, when the file has one), never its text."""

    index: int  # row among the prompts, from 0; blank lines do not count
    text: str
    id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # columns or keys that came with it, plain JSON values

    @property
    def digest(self) -> str:
        """SHA-256 of the text in UTF-8, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Everything that one prompt file holds."""

    prompts: tuple[Prompt, ...]
    format: str  # which reader read it: one of FORMATS without `auto`, or `inline`
    source: str  # name of the file, without its folder
    digest: str  # SHA-256 of its bytes, hexadecimal
    skipped: int = 0  # blank lines
    duplicates: int = 0  # prompts whose text stood in an earlier row; each still gets its own image

    def __len__(self) -> int:
        return len(self.prompts)
