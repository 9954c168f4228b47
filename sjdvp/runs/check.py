"""Is a run folder whole? Compares what was asked for, the log rows and the bytes of the images."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.runs.folder import expected_images, require_run
from sjdvp.runs.layout import IMAGES, image_file
from sjdvp.runs.log import Entry, image_sizes, read_log

_OF_FILE_MANAGERS = (
    "Thumbs.db",
    "desktop.ini",
)  # put beside images by what shows them, as are hidden files


@dataclass(frozen=True, slots=True)
class Finding:
    """One image that is not as it should be; `file` is relative to the run folder."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The state of a run folder; it is whole when nothing is missing, corrupt or foreign."""

    expected: int
    ok: int
    missing: tuple[Finding, ...]
    corrupt: tuple[Finding, ...]
    foreign: tuple[Finding, ...]

    @property
    def whole(self) -> bool:
        """Whether every expected image is there and right, and nothing else lies beside them."""
        return not (self.missing or self.corrupt or self.foreign)

    def as_json(self) -> dict[str, Any]:
        """Return the object of `check --json`: counts for expected and ok, lists of {file, reason} for the rest."""
        findings = {"missing": self.missing, "corrupt": self.corrupt, "foreign": self.foreign}
        lists = {
            key: [{"file": f.file, "reason": f.reason} for f in found]
            for key, found in findings.items()
        }
        return {"expected": self.expected, "ok": self.ok, **lists}


def check_folder(out: Path) -> CheckReport:
    """Compare every expected image of the run folder `out` with its log row (size and SHA-256).

    Raises FolderError when `out` is no run folder, or one that cannot be read.
    """
    info = require_run(out)
    entries = read_log(out)
    expected = [
        (prompt.index, sample)
        for prompt, count in expected_images(out, info)
        for sample in range(count)
    ]
    several = any(wanted.images_per_prompt > 1 for wanted in info.wanted)
    there = {f"{IMAGES}/{name}" for name in image_sizes(out)}
    owners = {entry.sha256: entry for entry in entries.values() if entry.ok}
    missing: list[Finding] = []
    corrupt: list[Finding] = []
    for key in expected:
        entry = entries.get(key)
        file = (entry.file if entry else None) or image_file(
            *key, images_per_prompt=2 if several else 1
        )
        if entry is None or not entry.ok or file not in there:
            missing.append(Finding(file, _why_missing(entry)))
        elif problem := image_problem(out, entry, owners):
            corrupt.append(Finding(file, problem))
    known = {entry.file for entry in entries.values() if entry.ok}
    foreign = [Finding(file, "no log row names it") for file in _images(out) if file not in known]
    return CheckReport(
        len(expected),
        len(expected) - len(missing) - len(corrupt),
        tuple(missing),
        tuple(corrupt),
        tuple(foreign),
    )


def image_problem(out: Path, entry: Entry, owners: Mapping[str | None, Entry]) -> str:
    """Say why the file of an ok row is not the image that was written; "" when it is. `owners` finds entries by SHA-256."""
    try:
        data = (out / (entry.file or "")).read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    digest = hashlib.sha256(data).hexdigest()
    if digest == entry.sha256:
        return ""
    if digest in owners:
        return f"holds the image of {owners[digest].file}"
    if len(data) != entry.bytes:
        return f"{len(data)} bytes, the log says {entry.bytes}"
    return "not the bytes that were written"


def _why_missing(entry: Entry | None) -> str:
    if entry is None:
        return "not drawn yet"
    if entry.ok:
        return "drawn, but the file is gone"
    return f"failed: {(entry.error or {}).get('message', 'no message')}"


def _images(out: Path) -> list[str]:
    names = [path.name for path in (out / IMAGES).iterdir()] if (out / IMAGES).is_dir() else []
    return sorted(f"{IMAGES}/{name}" for name in names if not _is_ignored(name))


def _is_ignored(name: str) -> bool:
    """Say whether a file beside the images is nobody's business; a hidden .tmp is: a write of ours that was cut off."""
    return name in _OF_FILE_MANAGERS or (name.startswith(".") and not name.endswith(".tmp"))
