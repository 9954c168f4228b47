"""The log: one row an image, append only, a file a shard. What is done is told by rows and files together, never by a count."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.errors import FolderError
from sjdvp.runs.fields import inner, optional, text, whole, word
from sjdvp.runs.jsonl import Row, numbered_rows
from sjdvp.runs.layout import IMAGES, log_paths
from sjdvp.text import printable

_PICTURE = re.compile(rf"{IMAGES}/[0-9_]+\.png")

ImageKey = tuple[int, int]  # (prompt row, sample)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the log says about one image; of several rows the last attempt counts."""

    key: ImageKey
    ok: bool
    attempt: int
    started_at: str
    file: str | None  # relative to the run folder, with "/"
    bytes: int | None
    sha256: str | None
    error: dict[str, Any] | None

    @property
    def when(self) -> tuple[int, str]:
        """What tells the last of several attempts at one image."""
        return self.attempt, self.started_at

    @classmethod
    def of(cls, row: Row, where: str) -> "Entry":
        """Pick the entry out of a log row; raises FolderError, which names the place `where`, when the row is none."""
        try:
            text(row, "prompt")  # reports show it
            return cls(
                key=(whole(row, "index"), whole(row, "sample")),
                ok=word(row, "status", ("ok", "failed")) == "ok",
                attempt=whole(row, "attempt"),
                started_at=text(row, "started_at"),
                file=optional(_image, row, "file"),
                bytes=optional(whole, row, "bytes"),
                sha256=optional(text, row, "image_sha256"),
                error=optional(inner, row, "error"),
            )
        except ValueError as error:
            raise FolderError(
                f"{where}: {error}", "put back what stood there, or delete that line"
            ) from error


def read_log(root: Path) -> dict[ImageKey, Entry]:
    """Return the entry of every image that any log of the folder names; raises FolderError for a log that cannot be read."""
    entries: dict[ImageKey, Entry] = {}
    for entry, _ in logged(root):
        if entry.key not in entries or entries[entry.key].when <= entry.when:
            entries[entry.key] = entry
    return entries


def logged(root: Path) -> Iterator[tuple[Entry, Row]]:
    """Yield every row of every log of the folder with its entry; raises FolderError for a log that cannot be read."""
    for path in log_paths(root):
        for line, row in numbered_rows(path):
            yield Entry.of(row, f"{path.name}: line {line}"), row


def finished(root: Path, entries: dict[ImageKey, Entry]) -> set[ImageKey]:
    """Return the images that have an ok row and a file of the size that the row says."""
    sizes = image_sizes(root)
    return {
        key
        for key, e in entries.items()
        if e.ok and e.file is not None and sizes.get(Path(e.file).name) == e.bytes
    }


def image_sizes(root: Path) -> dict[str, int]:
    """Return the size of every file among the images, by name; raises FolderError when they cannot be looked at."""
    try:
        with os.scandir(root / IMAGES) as found:
            return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise FolderError(
            f"cannot read {root / IMAGES}: {error.strerror}", "run as the user who may read it"
        ) from error


def _image(row: object, key: str) -> str:
    file = text(row, key)
    if not _PICTURE.fullmatch(file):
        raise ValueError(f"{key} names {printable(file)!r}, which is no image of this folder")
    return file
