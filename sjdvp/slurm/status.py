"""The progress of an array: files on disk, joined with the queue, which forgets ended tasks."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.runs.folder import RunFolder
from sjdvp.runs.jsonl import Appender, read_rows
from sjdvp.runs.log import finished
from sjdvp.runs.run_json import read_run
from sjdvp.slurm.queue import QueuedTask
from sjdvp.slurm.script import FOLDER

JOBS = "jobs.jsonl"  # what was submitted, one row per job, beside the scripts


@dataclass(frozen=True, slots=True)
class ShardState:
    """One shard: its images on disk and its task in the queue."""

    shard: int
    expected: int | None  # images; None: no task has started, so the prompts are not known
    done: int
    failed: int
    task: QueuedTask | None  # the active one, else the last one that the queue lists

    @property
    def whole(self) -> bool:
        """Whether every image of the shard exists."""
        return self.expected is not None and self.done == self.expected

    @property
    def missing(self) -> bool:
        """Whether images are missing and no task will generate them."""
        return not self.whole and not (self.task and self.task.active)

    def as_json(self) -> dict[str, Any]:
        """Return the shard as JSON values."""
        task = (
            None
            if self.task is None
            else {"job": self.task.job, "state": self.task.state, "node": self.task.node}
        )
        return {
            "shard": self.shard,
            "expected": self.expected,
            "done": self.done,
            "failed": self.failed,
            "task": task,
            "missing": self.missing,
        }


def remember(out: Path, job: str, array: str) -> None:
    """Record that an array was submitted; raises StorageError."""
    with Appender(out / FOLDER / JOBS) as jobs:
        jobs.append([{"job": job, "array": array}])


def shard_states(out: Path, count: int, tasks: Iterable[QueuedTask]) -> list[ShardState]:
    """Return the state of each of `count` shards; tasks of other folders are ignored."""
    ours = (
        [row["job"] for row in read_rows(out / FOLDER / JOBS)]
        if (out / FOLDER / JOBS).exists()
        else []
    )
    latest = _latest(ours, tasks)
    info = read_run(out)
    if info is None:
        return [ShardState(shard, None, 0, 0, latest.get(shard)) for shard in range(count)]
    folder = RunFolder(out, info)
    entries = folder.log()
    there = finished(out, entries)
    keys = []
    for prompt, samples in folder.expected():
        for key in ((prompt.index, sample) for sample in samples):
            keys.append(key)
            if key in there and not entries[key].is_of(prompt):
                there.remove(key)
    expected = Counter(index % count for index, _ in keys)
    done = Counter(key[0] % count for key in keys if key in there)
    failed = Counter(key[0] % count for key in keys if key in entries and not entries[key].ok)
    return [
        ShardState(shard, expected[shard], done[shard], failed[shard], latest.get(shard))
        for shard in range(count)
    ]


def _latest(ours: Sequence[str], tasks: Iterable[QueuedTask]) -> Mapping[int, QueuedTask]:
    chosen = [task for task in tasks if task.job in ours]
    return {
        task.task: task
        for task in sorted(chosen, key=lambda task: (task.active, ours.index(task.job)))
    }
