"""The counts of a run: log rows in, the object of `generate --json` and the warnings out."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sjdvp.events import Listener, Note
from sjdvp.jobs import FINISHED
from sjdvp.text import counted

_MOST_LISTED = 5  # truncated prompts named one by one


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended.

    `requested` is ok + failed + skipped, plus the images left when the run stopped early.
    """

    requested: int  # images asked of this process
    ok: int  # generated now
    failed: int  # failed now, or before and not tried again
    skipped: int  # finished by an earlier run
    wall_s: float  # all of it
    load_s: float  # of wall_s, until the first forward pass, without compile_s
    compile_s: float  # of wall_s, for compiling or capturing the step
    images_per_s: float | None  # ok per second since the first forward pass
    nfe_mean: float | None  # over the images generated now
    accept_rate: float | None  # accepted / drafted, over the images generated now

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
class RunCounts:
    """Running counts of one process."""

    requested: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    nfe: int = 0
    drafted: int = 0
    accepted: int = 0
    compile_s: float = 0.0

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one log row."""
        if row["status"] not in FINISHED:
            self.failed += 1
            return
        self.ok += 1
        self.nfe += row["nfe"] or 0
        self.drafted += row["drafted"] or 0
        self.accepted += row["accepted"] or 0

    def left(self, *, retry_failed: bool) -> int:
        """Return the images that running again would generate."""
        return self.requested - self.ok - self.skipped - (0 if retry_failed else self.failed)

    @property
    def nfe_mean(self) -> float | None:
        """Forward passes per image, over the images generated now."""
        return self.nfe / self.ok if self.nfe else None

    @property
    def accept_rate(self) -> float | None:
        """Accepted draft tokens per verified draft token."""
        return self.accepted / self.drafted if self.drafted else None

    def summary(self, wall_s: float, start_s: float) -> RunSummary:
        """Return the counts after `wall_s` seconds; `start_s`: before the first forward pass."""
        generation_s = wall_s - start_s
        return RunSummary(
            requested=self.requested,
            ok=self.ok,
            failed=self.failed,
            skipped=self.skipped,
            wall_s=wall_s,
            load_s=max(0.0, start_s - self.compile_s),
            compile_s=self.compile_s,
            images_per_s=self.ok / generation_s if self.ok else None,
            nfe_mean=self.nfe_mean,
            accept_rate=self.accept_rate,
        )


class TruncationWarnings:
    """Warns of prompts longer than the model reads: the first few by row, then their number."""

    def __init__(self, listen: Listener) -> None:
        self._listen = listen
        self._rows: set[int] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        """Take one log row into account; several images of a prompt give one warning."""
        index = row["index"]
        if not row["truncated"] or index in self._rows:
            return
        self._rows.add(index)
        if len(self._rows) <= _MOST_LISTED:
            self._warn(f"the prompt in row {index} is longer than the text limit: truncated")
        elif len(self._rows) == _MOST_LISTED + 1:
            self._warn("more prompts are truncated: their number follows at the end")

    def close(self) -> None:
        """Tell the number of truncated prompts, when not all of them were listed."""
        if len(self._rows) > _MOST_LISTED:
            prompts = counted(len(self._rows), "prompt")
            self._warn(f"{prompts} longer than the text limit: truncated")

    def _warn(self, message: str) -> None:
        self._listen(Note("warning", message))
