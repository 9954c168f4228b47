"""Metrics of a set of images, and of two runs image by image, from their log rows.

A ratio is a sum divided by a sum, so that an image counts for its number of tokens.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from sjdvp.report.load import Run
from sjdvp.runs.jsonl import JsonRow

RESAMPLES = 1000  # of the bootstrap
_SEED = 0  # equal logs give equal intervals


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 90th percentile of a measurement."""

    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a set of finished images cost; None where no log row tells it."""

    images: int
    nfe: float | None  # forward passes per image
    tokens_per_nfe: float | None
    accept_rate: float | None
    step_ms: float | None
    latency_s: Spread | None


@dataclass(frozen=True, slots=True)
class Speedup:
    """Cost of a base over the cost of a run; `low` and `high` bound the 95 % bootstrap interval."""

    value: float
    low: float | None
    high: float | None


def metrics(rows: Sequence[JsonRow]) -> Metrics:
    """Return the metrics of finished images."""
    nfe = values(rows, "nfe")
    step_s = ratio(rows, "decode_s", "nfe")
    return Metrics(
        images=len(rows),
        nfe=sum(nfe) / len(nfe) if nfe else None,
        tokens_per_nfe=ratio(rows, "image_tokens", "nfe"),
        accept_rate=ratio(rows, "accepted", "drafted"),
        step_ms=None if step_s is None else 1000 * step_s,
        latency_s=spread(values(rows, "latency_s")),
    )


def number(row: JsonRow, key: str) -> float | None:
    """Return a measurement of a log row; None when it is absent or no possible measurement."""
    value = row.get(key)
    return value if _is_measure(value) else None


def values(rows: Iterable[JsonRow], key: str) -> list[float]:
    """Return a measurement of all rows that have it."""
    return [value for row in rows if (value := number(row, key)) is not None]


def ratio(rows: Sequence[JsonRow], above: str, below: str) -> float | None:
    """Return the sum of one measurement over the sum of another, over the rows that have both."""
    pairs = [
        (a, b)
        for row in rows
        if (a := number(row, above)) is not None and (b := number(row, below)) is not None
    ]
    whole = sum(b for _, b in pairs)
    return sum(a for a, _ in pairs) / whole if whole else None


def spread(numbers: Sequence[float]) -> Spread | None:
    """Return median and 90th percentile."""
    return Spread(quantile(numbers, 0.5), quantile(numbers, 0.9)) if numbers else None


def quantile(numbers: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the numbers lie, interpolated linearly."""
    ordered = sorted(numbers)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def speedup(base: Run, run: Run, key: str) -> Speedup | None:
    """Return how much less `run` costs than `base` in the measurement `key`.

    It is a ratio of totals over the images that both have. The bootstrap resamples prompts with all
    their images, because images of one prompt are alike; a single prompt gives no interval. None
    when there is nothing to compare.
    """
    if base is run:
        return None
    sums: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    mine, theirs = run.ok, base.ok
    for image in mine.keys() & theirs.keys():
        cost, before = number(mine[image], key), number(theirs[image], key)
        if cost is not None and before is not None:
            sums[image[0]][0] += before
            sums[image[0]][1] += cost
    pairs = [sums[prompt] for prompt in sorted(sums)]
    if not pairs or not all(cost > 0 for _, cost in pairs):
        return None
    value = _ratio(pairs)
    if len(pairs) == 1:
        return Speedup(value, None, None)
    random_state = random.Random(_SEED)
    resampled = [_ratio(random_state.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES)]
    return Speedup(value, quantile(resampled, 0.025), quantile(resampled, 0.975))


def same_tokens(base: Run, run: Run) -> float | None:
    """Return the share of images whose tokens are those of `base`; None without such a pair."""
    mine, theirs = run.ok, base.ok
    both = [
        (mine[image].get("token_sha256"), theirs[image].get("token_sha256"))
        for image in mine.keys() & theirs.keys()
    ]
    known = [ours == other for ours, other in both if ours and other]
    return sum(known) / len(known) if known else None


def committed_shares(rows: Iterable[JsonRow]) -> list[float]:
    """Return the share of forward passes that committed 0, 1, 2, ... tokens, from `accept_hist`.

    Empty when no row has it.
    """
    found = [
        counts
        for row in rows
        if isinstance(counts := row.get("accept_hist"), list) and all(map(_is_measure, counts))
    ]
    sums = [sum(column) for column in itertools.zip_longest(*found, fillvalue=0)]
    whole = sum(sums)
    return [count / whole for count in sums] if whole else []


def acceptance_map(rows: Iterable[JsonRow]) -> list[list[float]] | None:
    """Return the share of images whose token was an accepted draft, by position in the image.

    `accept_map` has one character per token in raster order, 1 for an accepted draft. Maps of
    another length than the first are skipped. None when no row has one.
    """
    maps: list[str] = []
    columns = 0
    for row in rows:
        found = row.get("accept_map")
        if isinstance(found, str) and found and (not maps or len(found) == len(maps[0])):
            columns = columns or _columns(len(found), number(row, "width"), number(row, "height"))
            maps.append(found)
    if not maps or not columns:
        return None
    shares = [sum(mark == "1" for mark in marks) / len(maps) for marks in zip(*maps, strict=True)]
    return [shares[start : start + columns] for start in range(0, len(shares), columns)]


def _columns(tokens: int, width: float | None, height: float | None) -> int:
    """Return the columns of so many tokens in an image of this shape; 0 when they do not fit."""
    columns = round((tokens * width / height) ** 0.5) if width and height else 0
    return columns if columns and tokens % columns == 0 else 0


def _is_measure(value: object) -> TypeGuard[float]:
    """Return whether a value can have been measured: others are edited, and overflow in sums."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == 0 or 1e-9 <= value <= 2**53


def _ratio(pairs: list[list[float]]) -> float:
    return sum(before for before, _ in pairs) / sum(cost for _, cost in pairs)
