"""Small charts as inline SVG. They hold shapes only and may be stretched; words and numbers stand beside them in HTML."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from sjdvp.report.metrics import quantile

WIDTH, HEIGHT = 100, 24  # of a stretched chart, in its own units
_BINS = 32
_HEAT_CELLS = 32  # along a side; finer grids are averaged


@dataclass(frozen=True, slots=True)
class Scale:
    """The range that charts of one kind share."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def over(cls, numbers: Iterable[float], *, wide: bool = False) -> "Scale":
        """Return the range of all numbers, never empty; a `wide` one is logarithmic where they differ many times."""
        found = list(numbers)
        low, high = min(found, default=0.0), max(found, default=1.0)
        if low == high:
            low, high = low - abs(low) / 10 - 0.5, high + abs(high) / 10 + 0.5
        return cls(low, high, logarithmic=wide and 0 < 4 * low < high)

    def place(self, value: float) -> float:
        """Return where in the range a value lies, from 0 to 1."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def at(self, place: float) -> float:
        """Return the value at a place from 0 to 1."""
        if self.logarithmic:
            return self.low * (self.high / self.low) ** place
        return self.low + (self.high - self.low) * place


def histogram(numbers: Sequence[float], scale: Scale, title: str) -> Markup:
    """Return how often each size of number comes, with a line at the median."""
    counts = [0] * _BINS
    for value in numbers:
        counts[min(int(scale.place(value) * _BINS), _BINS - 1)] += 1
    middle = _line(WIDTH * scale.place(quantile(numbers, 0.5)), "median")
    return _svg(
        _columns(counts, max(counts), WIDTH / _BINS) + middle, title, WIDTH, HEIGHT, stretch=True
    )


def columns(shares: Sequence[float], title: str, top: float | None = None) -> Markup:
    """Return one column for each share, side by side; the highest one, or `top`, fills the height."""
    return _svg(
        _columns(shares, top or max(shares), 0.9 * WIDTH / len(shares)),
        title,
        WIDTH,
        HEIGHT,
        stretch=True,
    )


def _columns(heights: Sequence[float], top: float, width: float) -> Markup:
    step = WIDTH / len(heights)
    places = [(i * step, HEIGHT * height / top) for i, height in enumerate(heights) if height]
    return Markup("").join(
        _shape("rect", x=x, y=HEIGHT - tall, width=width, height=tall) for x, tall in places
    )


def bar(value: float, low: float | None, high: float | None, top: float, title: str) -> Markup:
    """Return a bar from 0 to `value` of `top`, its interval as a line, and a mark at 1."""
    shapes = [_shape("rect", x=0, y=5, width=WIDTH * value / top, height=HEIGHT - 10)]
    if low is not None and high is not None:
        start, end = WIDTH * low / top, WIDTH * high / top
        shapes.append(Markup('<path class="interval" d="M{:.2f} 12H{:.2f}"/>').format(start, end))
    return _svg(
        Markup("").join(shapes) + _line(WIDTH / top, "one"), title, WIDTH, HEIGHT, stretch=True
    )


def heat_map(grid: Sequence[Sequence[float]], scale: Scale, title: str) -> Markup:
    """Return a grid of cells, the darker the higher."""
    cells = _coarser(grid)
    shapes = [
        Markup('<rect x="{}" y="{}" width="1.02" height="1.02" fill-opacity="{:.2f}"/>').format(
            column, row, 0.04 + 0.96 * scale.place(value)
        )
        for row, line in enumerate(cells)
        for column, value in enumerate(line)
    ]
    return _svg(Markup("").join(shapes), title, len(cells[0]), len(cells), stretch=False)


def _coarser(grid: Sequence[Sequence[float]]) -> list[list[float]]:
    step = -(-max(len(grid), len(grid[0])) // _HEAT_CELLS)
    bands = [grid[top : top + step] for top in range(0, len(grid), step)]
    starts = range(0, len(grid[0]), step)
    return [
        [_mean([value for line in band for value in line[left : left + step]]) for left in starts]
        for band in bands
    ]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _shape(name: str, **numbers: float) -> Markup:
    attributes = Markup(" ").join(
        Markup('{}="{:.2f}"').format(key, value) for key, value in numbers.items()
    )
    return Markup("<{} {}/>").format(name, attributes)


def _line(x: float, kind: str) -> Markup:
    return Markup('<path class="{}" d="M{:.2f} 0V{}"/>').format(kind, x, HEIGHT)


def _svg(shapes: Markup, title: str, width: int, height: int, *, stretch: bool) -> Markup:
    return Markup('<svg role="img" viewBox="0 0 {} {}"{}><title>{}</title>{}</svg>').format(
        width,
        height,
        Markup(' preserveAspectRatio="none"') if stretch else "",
        escape(title),
        shapes,
    )
