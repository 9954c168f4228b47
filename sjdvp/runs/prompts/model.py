"""What reading prompts gives: prompts in row order, and what was left out. Knows no file format."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a prompt file, known by its `index` (and `id`, if any), not by its text."""

    index: int  # row among the prompts, from 0; blank lines do not count
    text: str
    id: str | None = None
    extra: Mapping[str, Any] = field(
        default_factory=dict
    )  # columns or keys that came with it, plain JSON values
    # What these columns ask for, see `sjdvp.runs.prompts.asked`: seed, n, filename, ...
    asked: Mapping[str, Any] = field(default_factory=dict)

    def copies(self, images_per_prompt: int) -> int:
        """Return the number of its images, where other prompts have `images_per_prompt`."""
        return int(self.asked.get("n", images_per_prompt))

    @property
    def digest(self) -> str:
        """SHA-256 of the text in UTF-8, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Everything that was read."""

    prompts: tuple[Prompt, ...]
    format: str  # which readers read it: names of FORMATS without `auto`, or `inline`
    source: str  # names of the files, without their folders
    digest: str  # SHA-256 of the file's bytes, of several files: of their digests; hexadecimal
    skipped: int = 0  # blank lines
    duplicates: int = 0  # prompts whose text stood in an earlier row; each still gets its own image
    empty: int = 0  # rows without a prompt, left out as that was asked for
    notes: tuple[str, ...] = ()  # what people are told: parts of the files that were not read

    def __len__(self) -> int:
        return len(self.prompts)

    def remarks(self) -> list[str]:
        """Say for people what was left out, and which prompts repeat others."""
        lines = [f"{self.skipped} blank lines skipped"] if self.skipped else []
        lines += [f"{self.empty} rows without a prompt skipped"] if self.empty else []
        lines += self.notes
        repeat = f"{self.duplicates} prompts repeat an earlier row; each row gets its own image"
        return [*lines, repeat] if self.duplicates else lines
