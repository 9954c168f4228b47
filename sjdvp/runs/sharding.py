"""Which rows are this process's: a shard of the prompt file, and a selection of rows. Deterministic, no communication."""

from collections.abc import Mapping
from dataclasses import dataclass

from sjdvp.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` (from 0) of `count` equal parts; rows are dealt round-robin, so parts stay equal when rows are appended."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(
                f"shard {self.index}/{self.count} does not exist",
                "shards count from 0: use K/N with 0 <= K < N",
            )

    @property
    def label(self) -> str:
        """The shard in file names: 003-of-008."""
        return f"{self.index:03d}-of-{self.count:03d}"

    def takes(self, row: int) -> bool:
        """Say whether prompt row `row` belongs to this shard."""
        return row % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str, environ: Mapping[str, str]) -> Shard:
    """Read `K/N`, or `auto` from a SLURM array, SLURM tasks or torchrun (array tasks times ranks when both are there).

    `auto` outside of all of them is 0/1. Raises ConfigError for anything that names no shard.
    """
    if text == "auto":
        array, ranks = _array_task(environ), _rank(environ)
        return Shard(array.index * ranks.count + ranks.index, array.count * ranks.count)
    index, slash, count = text.partition("/")
    if not (slash and _is_number(index) and _is_number(count)):
        raise ConfigError(f"--shard must be K/N (from 0) or auto, found {text!r}")
    return Shard(int(index), int(count))


def rank(environ: Mapping[str, str]) -> int:
    """Return which of its torchrun or SLURM ranks this process is; 0 outside of both."""
    return _rank(environ).index


def _array_task(environ: Mapping[str, str]) -> Shard:
    if "SLURM_ARRAY_TASK_ID" not in environ:
        return Shard()
    task, first = (
        _number(environ, "SLURM_ARRAY_TASK_ID"),
        _number(environ, "SLURM_ARRAY_TASK_MIN", 0),
    )
    count, step = (
        _number(environ, "SLURM_ARRAY_TASK_COUNT"),
        _number(environ, "SLURM_ARRAY_TASK_STEP", 1),
    )
    position, rest = divmod(task - first, step)
    if rest or not 0 <= position < count:
        raise ConfigError(
            f"--shard auto: array task {task} of {count} (from {first}, step {step}) has no place in a row of equal steps",
            "such an array (a list, or only what is missing) needs the count written out: --shard $SLURM_ARRAY_TASK_ID/N",
        )
    return Shard(position, count)


def _rank(environ: Mapping[str, str]) -> Shard:
    if (
        "RANK" in environ and "WORLD_SIZE" in environ
    ):  # torchrun first: started by srun, its ranks cover the tasks
        return Shard(_number(environ, "RANK"), _number(environ, "WORLD_SIZE"))
    if "SLURM_PROCID" not in environ or _is_batch_script(environ):
        return Shard()
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return Shard(_number(environ, "SLURM_PROCID"), _number(environ, count, 1))


def _is_batch_script(environ: Mapping[str, str]) -> bool:
    # There SLURM sets PROCID=0 and the NTASKS of the job though one process runs; only srun sets the tasks of a step.
    return "SLURM_JOB_ID" in environ and "SLURM_STEP_NUM_TASKS" not in environ


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = environ.get(name, "" if default is None else str(default))
    if not _is_number(value):
        raise ConfigError(f"--shard auto: {name} must be a whole number, found {value!r}")
    return int(value)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of the prompt file are wanted at all: `indices` (inclusive ranges; None: every row) among the first `limit`."""

    indices: tuple[tuple[int, int], ...] | None = None
    limit: int | None = None

    @property
    def end(self) -> int | None:
        """The first row after the last wanted one; None: there is no end."""
        ends = [] if self.limit is None else [self.limit]
        if self.indices is not None:
            ends.append(max((last for _, last in self.indices), default=-1) + 1)
        return min(ends, default=None)

    def takes(self, row: int) -> bool:
        """Say whether prompt row `row` is wanted."""
        within = self.limit is None or row < self.limit
        return within and (
            self.indices is None or any(first <= row <= last for first, last in self.indices)
        )


def parse_indices(text: str) -> tuple[tuple[int, int], ...]:
    """Read rows such as `3,10-20` (from 0, both ends included) into inclusive ranges; raises ConfigError."""
    ranges = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        last = last if dash else first
        if not (_is_number(first) and _is_number(last)) or int(first) > int(last):
            raise ConfigError(
                f"--indices must be rows and ranges such as 3,10-20, found {part.strip()!r} in {text!r}"
            )
        ranges.append((int(first), int(last)))
    return tuple(ranges)
