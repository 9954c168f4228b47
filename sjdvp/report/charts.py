"""Charts: their shapes as small inline SVG, their words and numbers as data for the templates.

A chart may be stretched, so its SVG holds shapes only; the text beside it is HTML.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup, escape

from sjdvp.report.load import Run
from sjdvp.report.metrics import acceptance_map, committed_shares, metrics, quantile, values
from sjdvp.report.table import BASES, DecoderResult, fixed, percent

WIDTH, HEIGHT = 100, 24  # of a stretched chart, in its own units
_BINS = 32
_HEAT_CELLS = 32  # along a side; finer maps are averaged


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One run in a chart, or one part of a run: its shapes, and its number as text."""

    run: int
    shapes: Markup
    value: str
    label: str = ""  # lossless or not, beside a speedup
    part: str = ""  # the name of a part of a run


@dataclass(frozen=True, slots=True)
class Chart:
    """Rows on a common scale; `ticks` are written below it, from left to right."""

    title: str
    note: str
    rows: tuple[ChartRow, ...]
    ticks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """The range that charts of one kind share."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def over(cls, numbers: Iterable[float], *, wide: bool = False) -> "Scale":
        """Return the range of all numbers, never empty.

        With `wide` it is logarithmic when the largest number is over 4 times the smallest.
        """
        found = list(numbers)
        low, high = min(found, default=0.0), max(found, default=1.0)
        if low == high:
            low, high = low - abs(low) / 10 - 0.5, high + abs(high) / 10 + 0.5
        return cls(low, high, logarithmic=wide and 0 < 4 * low < high)

    def place(self, value: float) -> float:
        """Return where in the range a value is, from 0 to 1."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def at(self, place: float) -> float:
        """Return the value at a place from 0 to 1."""
        if self.logarithmic:
            return self.low * (self.high / self.low) ** place
        return self.low + (self.high - self.low) * place


def speedup_charts(results: Sequence[DecoderResult]) -> Iterator[Chart]:
    """Yield a chart for each base decoder, in forward passes and in time."""
    words = {"nfe": "in forward passes (NFE)", "time": "in time"}
    for base in BASES:
        for cost, word in words.items():
            found = {
                i: speedup
                for i, result in enumerate(results)
                if (speedup := result.speedups[base][cost]) is not None
            }
            if not found:
                continue
            top = max(1.0, *(speedup.high or speedup.value for speedup in found.values())) * 1.02
            rows = [
                ChartRow(
                    i,
                    bar(s.value, s.low, s.high, top, f"{results[i].name}: {s.value:.2f}×"),
                    f"{s.value:.2f}×",
                    results[i].label,
                )
                for i, s in found.items()
            ]
            yield Chart(f"Speedup over {base} {word}", "line: 95 % interval", tuple(rows), ())


def distribution_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """Yield how latency, NFE, acceptance rate and committed tokens are distributed over images."""
    for title, key, words in (
        ("Latency per image", "latency_s", seconds),
        ("Forward passes per image (NFE)", "nfe", partial(fixed, digits=0)),
        ("Acceptance rate", "accept_rate", percent),
    ):
        numbers = [values(run.ok.values(), key) for run in runs]
        if any(numbers):
            yield _histogram_chart(title, numbers, words)
    committed = [committed_shares(run.ok.values()) for run in runs]
    if any(committed):
        rates = [metrics(list(run.ok.values())).tokens_per_nfe for run in runs]
        yield _committed_chart(committed, rates)


def _histogram_chart(
    title: str, numbers: Sequence[Sequence[float]], words: Callable[[float], str]
) -> Chart:
    scale = Scale.over((value for found in numbers for value in found), wide=True)
    rows = []
    for i, found in enumerate(numbers):
        if found:
            median = words(quantile(found, 0.5))
            rows.append(ChartRow(i, histogram(found, scale, f"{title}: median {median}"), median))
    note = "line and number: median" + ("; logarithmic scale" if scale.logarithmic else "")
    return Chart(title, note, tuple(rows), tuple(words(scale.at(place)) for place in (0, 0.5, 1)))


def _committed_chart(committed: Sequence[Sequence[float]], rates: Sequence[float | None]) -> Chart:
    """Show the shares of forward passes that committed 0, 1, 2, ... tokens.

    The number is tokens/NFE as in the table: it counts the first token too, which comes from the
    prefill.
    """
    title = "Tokens committed per forward pass"
    longest = max(map(len, committed))
    rows = []
    for i, (shares, rate) in enumerate(zip(committed, rates, strict=True)):
        if shares:
            padded = [*shares, *[0.0] * (longest - len(shares))]
            number = fixed(rate, 2)
            rows.append(ChartRow(i, columns(padded, f"{title}: {number} tokens/NFE"), number))
    ticks = tuple(str(round((longest - 1) * share)) for share in (0, 0.5, 1))
    return Chart(title, "number: tokens/NFE", tuple(rows), ticks)


def acceptance_chart(runs: Sequence[Run]) -> Chart | None:
    """Return the acceptance maps of the runs, or None when no log has one."""
    maps = {
        i: found
        for i, run in enumerate(runs)
        if (found := acceptance_map(run.ok.values())) and any(map(any, found))
    }
    if not maps:
        return None
    scale = Scale.over(value for found in maps.values() for line in found for value in line)
    rows = []
    for i, found in maps.items():
        mean = sum(map(sum, found)) / sum(map(len, found))
        shapes = heat_map(found, scale, f"{runs[i].name}: accepted draft tokens by position")
        rows.append(ChartRow(i, shapes, f"{percent(mean)} of tokens"))
    ticks = (percent(scale.low), percent(scale.high))
    return Chart("Acceptance map", "share of images", tuple(rows), ticks)


def seconds(value: float) -> str:
    """Return a duration as people read it."""
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


def histogram(numbers: Sequence[float], scale: Scale, title: str) -> Markup:
    """Return the shapes of a histogram, with a line at the median."""
    counts = [0] * _BINS
    for value in numbers:
        counts[min(int(scale.place(value) * _BINS), _BINS - 1)] += 1
    median = _line(WIDTH * scale.place(quantile(numbers, 0.5)), "median")
    shapes = _columns(counts, max(counts), WIDTH / _BINS) + median
    return _svg(shapes, title, WIDTH, HEIGHT, stretch=True)


def columns(shares: Sequence[float], title: str, top: float | None = None) -> Markup:
    """Return one column per share; the highest one, or `top`, fills the height."""
    shapes = _columns(shares, top or max(shares), 0.9 * WIDTH / len(shares))
    return _svg(shapes, title, WIDTH, HEIGHT, stretch=True)


def bar(value: float, low: float | None, high: float | None, top: float, title: str) -> Markup:
    """Return a bar from 0 to `value` of `top`, its interval as a line, and a mark at 1."""
    shapes = [_shape("rect", x=0, y=5, width=WIDTH * value / top, height=HEIGHT - 10)]
    if low is not None and high is not None:
        start, end = WIDTH * low / top, WIDTH * high / top
        shapes.append(Markup('<path class="interval" d="M{:.2f} 12H{:.2f}"/>').format(start, end))
    whole = Markup("").join(shapes) + _line(WIDTH / top, "one")
    return _svg(whole, title, WIDTH, HEIGHT, stretch=True)


def heat_map(values: Sequence[Sequence[float]], scale: Scale, title: str) -> Markup:
    """Return a map of cells, darker for a higher value."""
    cells = _coarser(values)
    shapes = [
        Markup('<rect x="{}" y="{}" width="1.02" height="1.02" fill-opacity="{:.2f}"/>').format(
            column, row, 0.04 + 0.96 * scale.place(value)
        )
        for row, line in enumerate(cells)
        for column, value in enumerate(line)
    ]
    return _svg(Markup("").join(shapes), title, len(cells[0]), len(cells), stretch=False)


def _coarser(values: Sequence[Sequence[float]]) -> list[list[float]]:
    step = -(-max(len(values), len(values[0])) // _HEAT_CELLS)
    bands = [values[top : top + step] for top in range(0, len(values), step)]
    starts = range(0, len(values[0]), step)
    return [
        [_mean([value for line in band for value in line[left : left + step]]) for left in starts]
        for band in bands
    ]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _columns(heights: Sequence[float], top: float, width: float) -> Markup:
    step = WIDTH / len(heights)
    places = [(i * step, HEIGHT * height / top) for i, height in enumerate(heights) if height]
    return Markup("").join(
        _shape("rect", x=x, y=HEIGHT - tall, width=width, height=tall) for x, tall in places
    )


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
