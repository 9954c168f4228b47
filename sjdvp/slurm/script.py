"""The batch scripts: readable, and the user's to edit. What is read back from one is read from its text, edits included."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sjdvp.errors import ConfigError, SlurmError
from sjdvp.runs.atomic import storage_errors, write_atomic

FOLDER = "slurm"  # in the run folder
ARRAY, CHECK, LOGS = "array.sh", "check.sh", "logs"

_COUNT = re.compile(r"\$\{?SLURM_ARRAY_TASK_ID\}?/([1-9]\d*)")
_AT_ONCE = re.compile(r"^#SBATCH\s+(?:--array|-a)[=\s]\S*?(%\d+)", re.MULTILINE)

_ARRAY_TEXT = """\
#!/bin/bash
# {count} shards, one a task of this array. Written by `sjdvp slurm`, yours to edit (an account, `module load`, a container).
# Tasks share nothing but the run folder: each may be stopped and started again at any time, and goes on where it was.
{resources}
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before its time is up a task is told so (USR1); it saves, and puts itself back into the queue.
#SBATCH --signal=B:USR1@120
set -eu
# exec: the signal must reach Python itself. The count is written out: when only task 3 is sent again, it is still 3 of {count}.
exec {command} \\
    --shard "$SLURM_ARRAY_TASK_ID/{count}"
"""

_CHECK_TEXT = """\
#!/bin/bash
# Runs when the array has ended, however it ended: is every image there and right? The logs of all shards are read as one.
{resources}
exec {command}
"""


@dataclass(frozen=True, slots=True)
class Resources:
    """What each task asks of the cluster; None leaves it to the site's default."""

    gpus: int = 1
    cpus: int | None = None
    memory: str | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    more: tuple[str, ...] = ()  # any other options of sbatch, as they are: "--qos=high"


@dataclass(frozen=True, slots=True)
class ArrayJob:
    """An array that draws into one run folder. `program` starts sjdvp; `generate` are the arguments after `generate`."""

    out: Path
    shards: int
    program: tuple[str, ...]
    generate: tuple[str, ...]
    cwd: Path
    resources: Resources
    at_once: int | None = None  # tasks that may run at the same time

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ConfigError(f"--shards must be 1 or more, found {self.shards}")

    def array_script(self) -> str:
        """Return the text of the array's script."""
        limit = f"%{self.at_once}" if self.at_once else ""
        options = [
            f"--array=0-{self.shards - 1}{limit}",
            *self._shared("%A_%a"),
            *_asked(self.resources),
        ]
        command = _wrapped([*self.program, "generate"], self.generate)
        return _ARRAY_TEXT.format(
            count=self.shards, resources=_directives(options), command=command
        )

    def check_script(self) -> str:
        """Return the text of the script that comes after the array."""
        wanted = self.resources
        options = [
            *self._shared("check-%j"),
            *_asked(Resources(0, None, None, None, wanted.partition, wanted.account)),
        ]
        command = shlex.join([*self.program, "check", str(self.out)])
        return _CHECK_TEXT.format(resources=_directives(options), command=command)

    def _shared(self, log: str) -> list[str]:
        logs = str(self.out.absolute() / FOLDER / LOGS).replace("%", "%%")
        return [
            f"--job-name=sjdvp-{self.out.absolute().name}",
            f"--chdir={self.cwd}",
            f"--output={logs}/{log}.log",
        ]


def write_scripts(job: ArrayJob) -> Path:
    """Write both scripts and make the folder of the logs; returns the array's script.

    Raises SlurmError when there is another script, which may hold what somebody added to it; StorageError when the disk refuses.
    """
    folder = job.out / FOLDER
    texts = {
        folder / ARRAY: job.array_script().encode(),
        folder / CHECK: job.check_script().encode(),
    }
    for path, text in texts.items():
        if path.exists() and path.read_bytes() != text:
            raise SlurmError(
                f"{path} is there and says something else",
                f"send it as it is (sjdvp slurm --submit --missing -o {job.out}), or remove it first",
            )
    with storage_errors(str(folder)):
        (folder / LOGS).mkdir(
            parents=True, exist_ok=True
        )  # without it SLURM starts nothing, and says nothing
        for path, text in texts.items():
            write_atomic(path, text)
    return folder / ARRAY


def read_array(out: Path) -> tuple[int, str]:
    """Return the shard count in a folder's array script, and its limit of tasks at once as `%N` or ""; raises SlurmError."""
    path = out / FOLDER / ARRAY
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SlurmError(
            f"no array script in {out / FOLDER}",
            "write it with `sjdvp slurm --prompts FILE --out DIR`",
        ) from error
    count, at_once = _COUNT.search(text), _AT_ONCE.search(text)
    if count is None:
        raise SlurmError(
            f"{path} does not say how many shards there are",
            'it needs --shard "$SLURM_ARRAY_TASK_ID/N"',
        )
    return int(count[1]), at_once[1] if at_once else ""


def _asked(wanted: Resources) -> list[str]:
    options = {
        "gres": f"gpu:{wanted.gpus}" if wanted.gpus else None,
        "cpus-per-task": wanted.cpus,
        "mem": wanted.memory,
        "time": wanted.time,
        "partition": wanted.partition,
        "account": wanted.account,
    }
    return [f"--{name}={value}" for name, value in options.items() if value is not None] + list(
        wanted.more
    )


def _directives(options: Sequence[str]) -> str:
    for option in options:
        if any(ord(c) < 32 for c in option):
            raise ConfigError(
                f"an option of sbatch cannot hold a line end or control character: {option!a}"
            )
    return "\n".join(f"#SBATCH {shlex.quote(option)}" for option in options)


def _wrapped(command: Sequence[str], arguments: Sequence[str]) -> str:
    """Write a command with each of its flags on a line of its own."""
    lines = [shlex.join(command)]
    for argument in arguments:
        if argument.startswith("--"):
            lines.append(shlex.quote(argument))
        else:
            lines[-1] += f" {shlex.quote(argument)}"
    return " \\\n    ".join(lines)
