"""Which images a process generates: its shard, the selected rows, their seeds and file names.

All of it is deterministic, so that processes share the work without talking to each other.
"""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sjdvp.errors import ConfigError

if TYPE_CHECKING:
    from sjdvp.runs.prompts.model import Prompt

RUN = "run.json"
PROMPTS = "prompts.jsonl"
IMAGES = "images"

Ranges = tuple[tuple[int, int], ...]  # of prompt rows, both ends included

_SEED_BITS = 53  # JSON readers keep integers below 2^53 exact


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` (from 0) of `count` parts: row i belongs to part i mod count.

    Dealt that way, parts stay equally large when rows are appended to the prompt file.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(
                f"shard {self.index}/{self.count} does not exist",
                "shards are numbered from 0: use K/N with 0 <= K < N",
            )

    @property
    def label(self) -> str:
        """The shard as part of a file name: 003-of-008."""
        return f"{self.index:03d}-of-{self.count:03d}"

    def takes(self, row: int) -> bool:
        """Return whether prompt row `row` belongs to this shard."""
        return row % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of the prompt file that a command asks for: `indices` among the first `limit`."""

    indices: Ranges | None = None  # inclusive ranges; None: every row
    limit: int | None = None

    @property
    def end(self) -> int | None:
        """The row after the last selected one; None: there is no last one."""
        ends = [] if self.limit is None else [self.limit]
        if self.indices is not None:
            ends.append(max((last for _, last in self.indices), default=-1) + 1)
        return min(ends, default=None)

    def takes(self, row: int) -> bool:
        """Return whether prompt row `row` is selected."""
        if self.limit is not None and row >= self.limit:
            return False
        return self.indices is None or in_ranges(row, self.indices)


def in_ranges(row: int, ranges: Ranges) -> bool:
    """Return whether `row` is in one of the inclusive ranges."""
    return any(first <= row <= last for first, last in ranges)


def image_seed(run_seed: int, index: int, sample: int, reroll: int = 0) -> int:
    """Return the seed of image `sample` of prompt row `index`, in [0, 2^53).

    `reroll` counts the requests for another seed.

    It is a hash of its arguments, so it does not depend on shards, batches or resuming.
    """
    numbers = f"{run_seed} {index} {sample}" + (f" {reroll}" if reroll else "")
    digest = hashlib.sha256(f"sjdvp seed 1: {numbers}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)


@dataclass(frozen=True, slots=True)
class Seeds:
    """The seeds of the images of a run."""

    run: int
    only: int | None = None  # of its one image, when that was given instead

    def of(self, prompt: "Prompt", sample: int, reroll: int = 0) -> int:
        """Return the seed of an image: of the first one, the seed that its row asks for, if any."""
        if self.only is not None:
            return self.only
        own = prompt.asked.get("seed")
        if own is None:
            return image_seed(self.run, prompt.index, sample, reroll)
        return image_seed(own, 0, sample, reroll) if sample or reroll else int(own)


def new_run_seed() -> int:
    """Return a random seed in [0, 2^32): short enough to type again."""
    return secrets.randbits(32)


def image_file(index: int, sample: int, images_per_prompt: int, image_format: str = "png") -> str:
    """Return the file name of an image relative to the run folder.

    images/000000.png, or images/000000_01.png when a prompt has several images.
    """
    number = f"_{sample:02d}" if images_per_prompt > 1 else ""
    return f"{IMAGES}/{index:06d}{number}.{image_format}"


def log_path(root: Path, shard: Shard) -> Path:
    """Return the path of the log of a shard."""
    return root / f"log.shard-{shard.label}.jsonl"


def log_paths(root: Path) -> list[Path]:
    """Return every log in a run folder, whatever shard counts it was generated with."""
    return sorted(root.glob("log.shard-*-of-*.jsonl"))


def parse_indices(text: str, flag: str = "--indices") -> Ranges:
    """Read rows such as `3,10-20` (from 0, both ends included) into ranges; raises ConfigError."""
    ranges = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        last = last if dash else first
        if not (_is_number(first) and _is_number(last)) or int(first) > int(last):
            raise ConfigError(
                f"{flag} must be rows and ranges such as 3,10-20, found {part.strip()!r}"
            )
        ranges.append((int(first), int(last)))
    return tuple(ranges)


def parse_shard(text: str, environ: Mapping[str, str]) -> Shard:
    """Read `K/N`, or `auto`: the shard that a SLURM array, SLURM tasks or torchrun give.

    With an array and ranks at once, every rank of every task is a shard. `auto` outside of all of
    them is 0/1. Raises ConfigError.
    """
    if text == "auto":
        array, ranks = _array_task(environ), _rank(environ)
        return Shard(array.index * ranks.count + ranks.index, array.count * ranks.count)
    index, slash, count = text.partition("/")
    if not (slash and _is_number(index) and _is_number(count)):
        raise ConfigError(f"--shard must be K/N (from 0) or auto, found {text!r}")
    return Shard(int(index), int(count))


def rank(environ: Mapping[str, str]) -> int:
    """Return the rank of this process under torchrun or SLURM; 0 outside of both."""
    return _rank(environ).index


def _array_task(environ: Mapping[str, str]) -> Shard:
    if "SLURM_ARRAY_TASK_ID" not in environ:
        return Shard()
    task = _number(environ, "SLURM_ARRAY_TASK_ID")
    first = _number(environ, "SLURM_ARRAY_TASK_MIN", 0)
    count = _number(environ, "SLURM_ARRAY_TASK_COUNT")
    step = _number(environ, "SLURM_ARRAY_TASK_STEP", 1)
    position, rest = divmod(task - first, step)
    if rest or not 0 <= position < count:
        raise ConfigError(
            f"--shard auto: the array is not a range of equal steps (task {task} of {count}, "
            f"from {first}, step {step})",
            "give the number of shards: --shard $SLURM_ARRAY_TASK_ID/N",
        )
    return Shard(position, count)


def _rank(environ: Mapping[str, str]) -> Shard:
    # torchrun first: started by srun, its ranks are within the SLURM tasks
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return Shard(_number(environ, "RANK"), _number(environ, "WORLD_SIZE"))
    if "SLURM_PROCID" not in environ or _is_batch_script(environ):
        return Shard()
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return Shard(_number(environ, "SLURM_PROCID"), _number(environ, count, 1))


def _is_batch_script(environ: Mapping[str, str]) -> bool:
    # In a batch script SLURM sets PROCID=0 and NTASKS of the whole job, though one process runs;
    # only srun sets the tasks of a step.
    return "SLURM_JOB_ID" in environ and "SLURM_STEP_NUM_TASKS" not in environ


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = environ.get(name, "" if default is None else str(default))
    if not _is_number(value):
        raise ConfigError(f"--shard auto: {name} must be a whole number, found {value!r}")
    return int(value)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
