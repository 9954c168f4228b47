"""The figures of one set of images, from their log rows. Sums are divided once, so that a long image counts for its length."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from sjdvp.runs.jsonl import JsonRow


@dataclass(frozen=True, slots=True)
class Spread:
    """Middle and tail of a measurement."""

    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What a set of finished images cost; None where no row says it."""

    images: int
    nfe: float | None  # decode forward passes an image
    tokens_per_nfe: float | None
    accept_rate: float | None
    step_ms: float | None
    latency_s: Spread | None


def figures(rows: Sequence[JsonRow]) -> Figures:
    """Sum up finished images."""
    nfe = values(rows, "nfe")
    return Figures(
        images=len(rows),
        nfe=sum(nfe) / len(nfe) if nfe else None,
        tokens_per_nfe=ratio(rows, "image_tokens", "nfe"),
        accept_rate=ratio(rows, "accepted", "drafted"),
        step_ms=_times(1000, ratio(rows, "decode_s", "nfe")),
        latency_s=spread(values(rows, "latency_s")),
    )


def number(row: JsonRow, key: str) -> float | None:
    """Return a measurement of a row; None when it is absent, or nothing that can have been measured."""
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
    """Return the value below which `share` of the numbers lie, between neighbours in proportion."""
    ordered = sorted(numbers)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def commits(rows: Iterable[JsonRow]) -> list[float]:
    """Return which share of all forward passes committed 0, 1, 2, ... tokens, from the rows' `accept_hist`; empty without any."""
    found = [
        counts
        for row in rows
        if isinstance(counts := row.get("accept_hist"), list) and all(map(_is_measure, counts))
    ]
    sums = [sum(column) for column in itertools.zip_longest(*found, fillvalue=0)]
    whole = sum(sums)
    return [count / whole for count in sums] if whole else []


def accept_grid(rows: Iterable[JsonRow]) -> list[list[float]] | None:
    """Return the share of accepted drafts at each place of the code grid, from the rows' `accept_map`; None without any.

    A map has one character a code in raster order, 1 for a draft that was accepted. Maps of another length than the first are
    passed over.
    """
    maps: list[str] = []
    columns = 0
    for row in rows:
        drawn = row.get("accept_map")
        if isinstance(drawn, str) and drawn and (not maps or len(drawn) == len(maps[0])):
            columns = columns or _columns(len(drawn), number(row, "width"), number(row, "height"))
            maps.append(drawn)
    if not maps or not columns:
        return None
    shares = [
        sum(place == "1" for place in places) / len(maps) for places in zip(*maps, strict=True)
    ]
    return [shares[start : start + columns] for start in range(0, len(shares), columns)]


def _columns(vocab_size: int, width: float | None, height: float | None) -> int:
    """Return how wide a grid of tokens is that fills a image of this shape; 0 when none fits."""
    columns = round((vocab_size * width / height) ** 0.5) if width and height else 0
    return columns if columns and vocab_size % columns == 0 else 0


def _is_measure(value: object) -> TypeGuard[float]:
    """Say whether a value is 0 or a number of a size that occurs: others are typed by hand, and overflow in sums and ratios."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (value == 0 or 1e-9 <= value <= 2**53)
    )


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value
