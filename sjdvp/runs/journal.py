"""The log: one row an image, append only, a file a shard. What is done is told by rows and files together, never by a count."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.errors import FolderError
from sjdvp.runs.jsonl import Row, read_rows
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

    @classmethod
    def of(cls, row: Row, where: str) -> "Entry":
        """Pick the entry out of a log row; raises FolderError when the row is none."""
        try:
            return cls(
                key=(row["index"], row["sample"]),
                ok=row["status"] == "ok",
                attempt=row["attempt"],
                started_at=row["started_at"],
                file=row["file"],
                bytes=row["bytes"],
                sha256=row["image_sha256"],
                error=row["error"],
            )
        except KeyError as error:
            raise FolderError(f"{where}: a row has no key {error}: not a log of sjdvp") from error

    def __post_init__(self) -> None:
        if self.file is not None and not _PICTURE.fullmatch(self.file):
            raise FolderError(f"a log row names {printable(self.file)!r}, which is no picture of this folder")


def read_log(root: Path) -> dict[ImageKey, Entry]:
    """Return the entry of every image that any log of the folder names; raises FolderError for a log that cannot be read."""
    entries: dict[ImageKey, Entry] = {}
    for path in log_paths(root):
        for row in read_rows(path):
            entry = Entry.of(row, path.name)
            known = entries.get(entry.key)
            if known is None or (known.attempt, known.started_at) <= (entry.attempt, entry.started_at):
                entries[entry.key] = entry
    return entries


def finished(root: Path, entries: dict[ImageKey, Entry]) -> set[ImageKey]:
    """Return the images that have an ok row and a file of the size that the row says."""
    sizes = _sizes(root / IMAGES)
    return {key for key, e in entries.items() if e.ok and e.file is not None and sizes.get(Path(e.file).name) == e.bytes}


def _sizes(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as found:
        return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}
