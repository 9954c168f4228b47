"""SLURM's commands sbatch, squeue and scontrol, with timeouts, and the progress of an array.

Many clusters have no sacct, and squeue forgets tasks that have ended: progress is read from the
files on disk, joined with the queue.
"""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.errors import SlurmError
from sjdvp.runs.folder import RunFolder
from sjdvp.runs.jsonl import Appender, read_rows
from sjdvp.runs.log import finished
from sjdvp.runs.run_json import read_run
from sjdvp.runs.tokens import finished_as_tokens
from sjdvp.slurm.script import FOLDER

_TIMEOUT_S = 60  # these commands hang when a daemon is down
_ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """One array task in the queue."""

    job: str  # the array's id
    task: int
    state: str  # PENDING, RUNNING, ...
    node: str
    reason: str  # why it is pending, or how it ended

    @property
    def active(self) -> bool:
        """Whether it is running or will run."""
        return self.state not in _ENDED


def submit(script: Path, *options: str) -> str:
    """Submit a script and return the job's id; raises SlurmError."""
    return _ask("sbatch", "--parsable", *options, str(script)).strip().partition(";")[0]


def queued_tasks() -> list[QueuedTask]:
    """Return this user's array tasks that the queue lists, ended or not; raises SlurmError."""
    lines = _ask(
        "squeue", "-h", "-r", "-t", "all", f"--user={os.getuid()}", "-o", "%F|%K|%T|%N|%r"
    ).splitlines()
    cells = [line.split("|", 4) for line in lines]
    return [QueuedTask(c[0], int(c[1]), *c[2:]) for c in cells if len(c) == 5 and c[1].isdecimal()]


def largest_array() -> int:
    """Return how many tasks an array may have on this cluster; raises SlurmError."""
    found = re.search(
        r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config"), re.MULTILINE
    )
    if found is None:
        raise SlurmError("scontrol show config has no MaxArraySize")
    return int(found[1])


def own_job(environ: Mapping[str, str]) -> str:
    """Return the job that this process runs in, as scontrol takes it; "" outside of SLURM."""
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID", "")


def requeue(job: str) -> None:
    """Requeue a running job, whose processes get SIGTERM at once; raises SlurmError."""
    _ask("scontrol", "requeue", job)


def array_list(tasks: Iterable[int]) -> str:
    """Return task numbers in the form of sbatch: 0-2,7."""
    ranges: list[list[int]] = []
    for task in sorted(set(tasks)):
        if ranges and task == ranges[-1][1] + 1:
            ranges[-1][1] = task
        else:
            ranges.append([task, task])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise SlurmError(
            f"there is no {command[0]} here", "run it on a login node of the cluster"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]} does not answer: {error}") from error
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SlurmError(
            f"{command[0]}: {reason[-1].removeprefix(f'{command[0]}: ').removeprefix('error: ')}"
        )
    return done.stdout


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
    there = finished(out, entries) | finished_as_tokens(out, entries)
    keys = []
    for prompt, samples in folder.expected():
        for key in ((prompt.index, sample) for sample in samples):
            keys.append(key)
            if key in there and not entries[key].is_of(prompt, info.seeds):
                there.remove(key)
    expected = Counter(index % count for index, _ in keys)
    done = Counter(key[0] % count for key in keys if key in there)
    failed = Counter(
        key[0] % count for key in keys if key in entries and entries[key].status == "failed"
    )
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
