"""Counting a run: rows in, the object of `generate --json` out."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. `requested` = ok + failed + skipped, and what was left when the run stopped early."""

    requested: int  # images asked of this process
    ok: int  # drawn now
    failed: int  # failed now, or before and not tried again
    skipped: int  # finished by an earlier run
    wall_s: float
    images_per_s: float | None  # ok / wall_s
    nfe_mean: float | None  # over the images drawn now
    accept_rate: float | None  # accepted / drafted, over the images drawn now

    @property
    def finished(self) -> int:
        """Requested images that exist and are valid."""
        return self.ok + self.skipped

    @property
    def exit_code(self) -> int:
        """0 when every requested image exists, else 1."""
        return 0 if self.finished == self.requested else 1

    def as_json(self) -> dict[str, Any]:
        """Return the object of `generate --json`."""
        return dataclasses.asdict(self)


@dataclass(slots=True)
class Tally:
    """Running counts of one process."""

    requested: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    nfe: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one log row."""
        if row["status"] != "ok":
            self.failed += 1
            return
        self.ok += 1
        self.nfe += row["nfe"] or 0
        self.drafted += row["drafted"] or 0
        self.accepted += row["accepted"] or 0

    @property
    def nfe_mean(self) -> float | None:
        """Forwards an image, over the images drawn now."""
        return self.nfe / self.ok if self.nfe else None

    @property
    def accept_rate(self) -> float | None:
        """Drafts that stood, of those tested."""
        return self.accepted / self.drafted if self.drafted else None

    def summary(self, wall_s: float) -> Summary:
        """Return the counts after `wall_s` seconds."""
        return Summary(
            requested=self.requested,
            ok=self.ok,
            failed=self.failed,
            skipped=self.skipped,
            wall_s=wall_s,
            images_per_s=self.ok / wall_s if self.ok else None,
            nfe_mean=self.nfe_mean,
            accept_rate=self.accept_rate,
        )
