"""Whether a run folder is complete: compares the request, the log rows and the image files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.errors import FolderError
from sjdvp.runs.folder import RunFolder
from sjdvp.runs.log import OUTDATED, ImageKey, LogEntry, image_sizes
from sjdvp.runs.sharding import IMAGES, image_file
from sjdvp.runs.tokens import saved_tokens

# Put beside images by file managers; so are hidden files.
_IGNORED = ("Thumbs.db", "desktop.ini")


@dataclass(frozen=True, slots=True)
class Finding:
    """One file that is not as it should be; `file` is relative to the run folder."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The state of a run folder."""

    expected: int
    ok: int
    tokens_only: int  # of them, without an image file, as the model has no VQ decoder
    missing: tuple[Finding, ...]
    corrupt: tuple[Finding, ...]
    foreign: tuple[Finding, ...]

    @property
    def whole(self) -> bool:
        """Whether every expected image is there and valid, and no other file lies beside them."""
        return not (self.missing or self.corrupt or self.foreign)

    def as_json(self) -> dict[str, Any]:
        """Return the object of `check --json`: three counts, then lists."""
        findings = {"missing": self.missing, "corrupt": self.corrupt, "foreign": self.foreign}
        lists = {
            key: [{"file": f.file, "reason": f.reason} for f in found]
            for key, found in findings.items()
        }
        counts = {"expected": self.expected, "ok": self.ok, "tokens_only": self.tokens_only}
        return {**counts, **lists}


def check_folder(out: Path) -> CheckReport:
    """Compare every expected image of the run folder `out` with its log row (size and SHA-256).

    Saved image tokens are compared with the digest in that row.

    Raises FolderError when `out` is not a run folder, or cannot be read.
    """
    folder = RunFolder.read(out)
    entries = folder.log()
    expected = [
        (prompt, (prompt.index, sample))
        for prompt, samples in folder.expected()
        for sample in samples
    ]
    logged = next((entry.file for entry in entries.values() if entry.file), ".png")
    image_format = logged.rpartition(".")[2]
    copies = max(wanted.images_per_prompt for wanted in folder.info.wanted)
    files = {f"{IMAGES}/{name}" for name in image_sizes(out)}
    owners = {entry.sha256: entry for entry in entries.values() if entry.ok}
    tokens = _token_problems(out, entries)
    missing: list[Finding] = []
    corrupt: list[Finding] = []
    tokens_only = 0
    for prompt, key in expected:
        entry = entries.get(key)
        name = image_file(*key, prompt.copies(copies), image_format)
        file = (entry.file if entry else None) or name
        if entry is not None and not entry.is_of(prompt, folder.info.seeds):
            missing.append(Finding(file, OUTDATED))
        elif entry is None or not (entry.status == "tokens" or (entry.ok and file in files)):
            missing.append(Finding(file, _why_missing(entry)))
        elif problem := image_problem(out, entry, owners) or tokens.get(key, ""):
            corrupt.append(Finding(file, problem))
        elif key not in tokens and (not entry.ok or folder.wants_tokens(prompt, key[1])):
            missing.append(Finding(file, "its image tokens are not saved"))
        else:
            tokens_only += not entry.ok
    known = {entry.file for entry in entries.values() if entry.ok}
    foreign = [Finding(file, "no log row names it") for file in _images(out) if file not in known]
    ok = len(expected) - len(missing) - len(corrupt)
    return CheckReport(
        len(expected), ok, tokens_only, tuple(missing), tuple(corrupt), tuple(foreign)
    )


def _token_problems(out: Path, entries: Mapping[ImageKey, LogEntry]) -> dict[ImageKey, str]:
    """Return for each image whose tokens are saved what is wrong with them, "" when nothing."""
    problems: dict[ImageKey, str] = {}
    for saved in saved_tokens(out):
        entry = entries.get(saved.key)
        if entry is None or entry.token_sha256 != saved.token_sha256:
            continue  # of an earlier attempt
        try:
            saved.decode()
            problems[saved.key] = ""
        except FolderError as error:
            problems[saved.key] = str(error)
    return problems


def image_problem(out: Path, entry: LogEntry, owners: Mapping[str | None, LogEntry]) -> str:
    """Return why the file of an entry is not the image that was written; "" when it is.

    Also "" for an entry that has no file, as its model makes none.

    `owners` are the entries of the folder by the SHA-256 of their image.
    """
    if entry.status == "tokens":
        return ""
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
        return f"has {len(data)} bytes, the log says {entry.bytes}"
    return "has other bytes than were written"


def _why_missing(entry: LogEntry | None) -> str:
    if entry is None:
        return "not generated yet"
    if entry.ok:
        return "generated, but the file is gone"
    return f"failed: {(entry.error or {}).get('message', 'no message')}"


def _images(out: Path) -> list[str]:
    names = [path.name for path in (out / IMAGES).iterdir()] if (out / IMAGES).is_dir() else []
    return sorted(f"{IMAGES}/{name}" for name in names if not _is_ignored(name))


def _is_ignored(name: str) -> bool:
    """Return whether a file beside the images does not matter; our own temporary files do."""
    return name in _IGNORED or (name.startswith(".") and not name.endswith(".tmp"))
