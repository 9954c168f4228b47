"""Is a run folder whole? Compares what was asked for, the log rows and the bytes of the pictures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One picture that is not as it should be; `file` is relative to the run folder."""

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
        """Whether every expected picture is there and right, and nothing else lies beside them."""
        return not (self.missing or self.corrupt or self.foreign)

    def as_json(self) -> dict[str, Any]:
        """Return the object of `check --json`: counts for expected and ok, lists of {file, reason} for the rest."""
        findings = {"missing": self.missing, "corrupt": self.corrupt, "foreign": self.foreign}
        lists = {key: [{"file": f.file, "reason": f.reason} for f in found] for key, found in findings.items()}
        return {"expected": self.expected, "ok": self.ok, **lists}


def check_folder(out: Path) -> CheckReport:
    """Compare every expected picture of the run folder `out` with its log row (size and SHA-256).

    Raises FolderError when `out` is no run folder.
    """
    raise NotImplementedError
