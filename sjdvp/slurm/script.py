"""The batch scripts: readable, and the user's to edit; they are read back from their text."""

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
# {count} shards, one per task of this array. Written by `sjdvp slurm`, yours to edit: an account,
# `module load`, a container. Tasks share only the run folder; each may be stopped at any time and
# resumes when it is started again.
{resources}
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before its time limit a task gets USR1: it saves its work and requeues itself.
#SBATCH --signal=B:USR1@120
set -eu
# exec: the signal must reach Python itself. The count is written out: when only task 3 is
# submitted again, it is still task 3 of {count}.
exec {command} \\
    --shard "$SLURM_ARRAY_TASK_ID/{count}"
"""

_CHECK_TEXT = """\
#!/bin/bash
# Runs when the array has ended, however it ended: checks that every image exists and is valid.
{resources}
exec {command}
"""


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of each task; None: the default of the cluster."""

    gpus: int = 1
    cpus: int | None = None
    memory: str | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    more: tuple[str, ...] = ()  # other options of sbatch, unchanged: "--qos=high"


@dataclass(frozen=True, slots=True)
class ArrayJob:
    """An array that generates into one run folder.

    `program` starts sjdvp; `generate` are the arguments after `generate`.
    """

    out: Path
    shards: int
    program: tuple[str, ...]
    generate: tuple[str, ...]
    cwd: Path
    resources: Resources
    at_once: int | None = None  # most tasks that run at the same time

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
        """Return the text of the script that runs after the array."""
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
    """Write both scripts, make the folder of the logs, return the path of the array's script.

    Raises SlurmError when a different script exists, because the user may have edited it;
    StorageError.
    """
    folder = job.out / FOLDER
    texts = {
        folder / ARRAY: job.array_script().encode(),
        folder / CHECK: job.check_script().encode(),
    }
    for path, text in texts.items():
        if path.exists() and path.read_bytes() != text:
            raise SlurmError(
                f"{path} exists and is different",
                f"submit it as it is with {submit_command(job.out)}, or delete it first",
            )
    with storage_errors(str(folder)):
        # Without it SLURM starts nothing, and gives no message.
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_atomic(path, text)
    return folder / ARRAY


def read_array(out: Path) -> tuple[int, str]:
    """Return the shard count of a folder's array script, and its task limit as `%N` or "".

    Raises SlurmError.
    """
    path = out / FOLDER / ARRAY
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SlurmError(
            f"there is no array script in {out / FOLDER}",
            "write it with `sjdvp slurm --prompts FILE --out DIR`",
        ) from error
    count, at_once = _COUNT.search(text), _AT_ONCE.search(text)
    if count is None:
        raise SlurmError(
            f"{path} does not give the number of shards",
            'it needs --shard "$SLURM_ARRAY_TASK_ID/N"',
        )
    return int(count[1]), at_once[1] if at_once else ""


def submit_command(out: Path) -> str:
    """Return the command that submits the script in a folder, quoted for a shell."""
    return shlex.join(["sjdvp", "slurm", "--submit", "--missing", "-o", str(out)])


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
                f"an option of sbatch must not have a line end or control character: {option!a}"
            )
    return "\n".join(f"#SBATCH {shlex.quote(option)}" for option in options)


def _wrapped(command: Sequence[str], arguments: Sequence[str]) -> str:
    """Return a command with each of its flags on its own line."""
    lines = [shlex.join(command)]
    for argument in arguments:
        if argument.startswith("--"):
            lines.append(shlex.quote(argument))
        else:
            lines[-1] += f" {shlex.quote(argument)}"
    return " \\\n    ".join(lines)
