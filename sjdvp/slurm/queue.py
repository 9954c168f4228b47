"""SLURM's commands sbatch, squeue and scontrol, with timeouts; many clusters have no sacct."""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sjdvp.errors import SlurmError

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
