"""What a page shows, gathered from runs: plain data for the templates, no HTML but the charts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sjdvp.report import svg
from sjdvp.report.cards import Card, make_cards
from sjdvp.report.categories import Categories, categories
from sjdvp.report.fair import unfair
from sjdvp.report.load import Run
from sjdvp.report.metrics import accept_grid, commits, figures, number, quantile, values
from sjdvp.report.settings import Setting, hardware, settings
from sjdvp.report.table import BASES, Line, fixed, percent
from sjdvp.report.thumbs import Thumb, how_many, make_thumbs
from sjdvp.runs.jsonl import JsonRow


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One run in a chart, or one part of a run: its shapes, and its number in words."""

    run: int
    shapes: Markup
    value: str
    distribution: str = ""  # beside a speed
    part: str = ""  # what it is called, when it is a part of a run


@dataclass(frozen=True, slots=True)
class Chart:
    """Rows on a common scale; `ticks` are written below it, from left to right."""

    title: str
    note: str
    rows: tuple[ChartRow, ...]
    ticks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shot:
    """One image of a strip, or why there is none."""

    run: int
    thumb: Thumb | None
    caption: str
    same_as_ar: bool
    problem: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The images of one prompt and seed, one a run."""

    index: int
    prompt: str
    tags: str
    shots: tuple[Shot, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """An image that could not be drawn, and what to do."""

    run: int
    index: int
    prompt: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Page:
    """Everything on the page."""

    title: str
    subtitle: str
    names: tuple[str, ...]
    unfair: tuple[str, ...]
    cards: tuple[Card, ...]
    lines: tuple[Line, ...]
    speed: tuple[Chart, ...]
    histograms: tuple[Chart, ...]
    heat: Chart | None
    strips: tuple[Strip, ...]
    not_shown: int
    categories: tuple[Categories, ...]
    failures: tuple[Failure, ...]
    settings: tuple[Setting, ...]
    hardware: tuple[Setting, ...]
    version: str


def make_page(runs: Sequence[Run], lines: Sequence[Line], version: str) -> Page:
    """Gather what the page of `runs` shows, with their table; reads the images."""
    keys = sorted({key for run in runs for key in run.rows})
    shown = keys[: how_many(len(keys) * len(runs)) // len(runs)]
    return Page(
        title=_title(runs),
        subtitle=_subtitle(runs),
        names=tuple(run.name for run in runs),
        unfair=tuple(unfair(runs)),
        cards=tuple(make_cards(runs, lines)),
        lines=tuple(lines),
        speed=tuple(_speed_charts(lines)),
        histograms=tuple(_histograms(runs)),
        heat=_heat(runs),
        strips=tuple(_strips(runs, shown)),
        not_shown=len(keys) - len(shown),
        categories=tuple(categories(runs)),
        failures=tuple(_failures(runs)),
        settings=tuple(settings(runs)),
        hardware=tuple(hardware(runs)),
        version=version,
    )


def _title(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return f"{_model(runs[0])}, decoder {runs[0].name}"
    return f"{len(runs)} decoders on {_model(runs[0])}" if not unfair(runs) else f"{len(runs)} runs"


def _model(run: Run) -> str:
    named = next((str(row["model"]) for row in run.ok.values() if row.get("model")), None)
    return Path(named or str(run.info.pixel_settings["model"]["backbone"])).name


def _subtitle(runs: Sequence[Run]) -> str:
    prompts = {index for run in runs for index, _ in run.rows}
    days = sorted({str(row["started_at"])[:10] for run in runs for row in run.rows.values()})
    parts = [
        f"{len(prompts)} prompts",
        f"{sum(len(run.ok) for run in runs)} images",
        f"seed {runs[0].info.seed}",
    ]
    return " · ".join(
        [*parts, *([" to ".join(dict.fromkeys([days[0], days[-1]]))] if days else [])]
    )


def _speed_charts(lines: Sequence[Line]) -> Iterator[Chart]:
    words = {"nfe": "Fewer forward passes", "time": "Less time"}
    for base in BASES:
        for cost, word in words.items():
            gains = {
                i: found
                for i, line in enumerate(lines)
                if (found := line.gains[base][cost]) is not None
            }
            if not gains:
                continue
            top = max(1.0, *(found.high or found.value for found in gains.values())) * 1.02
            rows = [
                ChartRow(
                    i,
                    svg.bar(g.value, g.low, g.high, top, f"{lines[i].name}: {g.value:.2f} times"),
                    f"{g.value:.2f}×",
                    lines[i].distribution,
                )
                for i, g in gains.items()
            ]
            yield Chart(f"{word} than {base}", "line: 95 % interval", tuple(rows), ())


def _histograms(runs: Sequence[Run]) -> Iterator[Chart]:
    for title, key, words in (
        ("Latency of an image", "latency_s", seconds),
        ("Forwards of an image (NFE)", "nfe", partial(fixed, digits=0)),
        ("Accepted share of drafts", "accept_rate", percent),
    ):
        numbers = [values(run.ok.values(), key) for run in runs]
        if any(numbers):
            yield _histogram(title, numbers, words)
    committed = [commits(run.ok.values()) for run in runs]
    if any(committed):
        yield _commit_chart(
            committed, [figures(list(run.ok.values())).tokens_per_nfe for run in runs]
        )


def _histogram(
    title: str, numbers: Sequence[Sequence[float]], words: Callable[[float], str]
) -> Chart:
    scale = svg.Scale.over((value for found in numbers for value in found), wide=True)
    rows = []
    for i, found in enumerate(numbers):
        if found:
            median = words(quantile(found, 0.5))
            rows.append(
                ChartRow(i, svg.histogram(found, scale, f"{title}: median {median}"), median)
            )
    note = "line and number: median" + ("; logarithmic" if scale.logarithmic else "")
    return Chart(title, note, tuple(rows), tuple(words(scale.at(place)) for place in (0, 0.5, 1)))


def _commit_chart(committed: Sequence[Sequence[float]], speeds: Sequence[float | None]) -> Chart:
    """Show the shares of forward passes that committed 0, 1, 2, ... tokens.

    The number beside them is that of the table, which counts the first code too: it comes with the prompt, not by a decode forward.
    """
    longest = max(map(len, committed))
    rows = []
    for i, (shares, speed) in enumerate(zip(committed, speeds, strict=True)):
        if shares:
            padded = [*shares, *[0.0] * (longest - len(shares))]
            words = fixed(speed, 2)
            rows.append(
                ChartRow(
                    i,
                    svg.columns(padded, f"Codes committed by a forward: {words} tokens a forward"),
                    words,
                )
            )
    ticks = tuple(str(round((longest - 1) * share)) for share in (0, 0.5, 1))
    return Chart("Codes committed by a forward", "number: tokens/forward", tuple(rows), ticks)


def seconds(value: float) -> str:
    """Return a duration as people read it."""
    return (
        f"{1000 * value:.0f} ms"
        if value < 1
        else f"{value:.2f} s"
        if value < 100
        else f"{value:.0f} s"
    )


def _heat(runs: Sequence[Run]) -> Chart | None:
    grids = {
        i: grid
        for i, run in enumerate(runs)
        if (grid := accept_grid(run.ok.values())) and any(map(any, grid))
    }
    if not grids:
        return None
    scale = svg.Scale.over(value for grid in grids.values() for line in grid for value in line)
    rows = []
    for i, grid in grids.items():
        mean = sum(map(sum, grid)) / sum(map(len, grid))
        rows.append(
            ChartRow(
                i,
                svg.heat_map(grid, scale, f"{runs[i].name}: acceptance by place"),
                f"{percent(mean)} of tokens",
            )
        )
    return Chart(
        "Where drafts are accepted",
        "share of images",
        tuple(rows),
        (percent(scale.low), percent(scale.high)),
    )


def _strips(runs: Sequence[Run], keys: Sequence[tuple[int, int]]) -> Iterator[Strip]:
    rows = {
        (i, key): run.rows[key] for i, run in enumerate(runs) for key in keys if key in run.rows
    }
    files = {
        at: runs[at[0]].root / row["file"]
        for at, row in rows.items()
        if row["status"] == "ok" and row.get("file")
    }
    thumbs = make_thumbs(files.values())
    plain = next((i for i, run in enumerate(runs) if run.decoder == "ar"), None)
    for key in keys:
        found = {i: row for i in range(len(runs)) if (row := rows.get((i, key))) is not None}
        first = next(iter(found.values()))
        tokens = _tokens(found.get(plain)) if plain is not None else None
        shots = []
        for i, row in found.items():
            thumb = thumbs[files[i, key]] if (i, key) in files else None
            same = i != plain and tokens is not None and _tokens(row) == tokens
            shots.append(Shot(i, thumb, _caption(row), same, "" if thumb else _problem(row)))
        extra = next((run.extras[key[0]] for run in runs if key[0] in run.extras), {})
        yield Strip(key[0], str(first["prompt"]), _tags(first, extra, key[1]), tuple(shots))


def _tokens(row: JsonRow | None) -> str | None:
    return row.get("token_sha256") if row else None


def _caption(row: JsonRow) -> str:
    nfe, latency = number(row, "nfe"), number(row, "latency_s")
    return " · ".join(
        [*([f"{nfe:.0f} forward passes"] if nfe else []), *([seconds(latency)] if latency else [])]
    )


def _problem(row: JsonRow) -> str:
    return (
        "the image's file is absent or broken"
        if row["status"] == "ok"
        else str((row["error"] or {}).get("message", "failed"))
    )


def _tags(row: JsonRow, extra: Mapping[str, Any], sample: int) -> str:
    words = [str(row["id"])] if row.get("id") else []
    words += [
        str(value) for value in extra.values() if isinstance(value, str) and 0 < len(value) <= 40
    ]
    return " · ".join(words + ([f"image {sample + 1} of this prompt"] if sample else []))


def _failures(runs: Sequence[Run]) -> Iterator[Failure]:
    for i, run in enumerate(runs):
        for row in run.failed:
            error = row["error"] or {}
            message = f"{error.get('type', 'failed')}: {error.get('message', 'no message')}"
            yield Failure(
                i, row["index"], str(row["prompt"]), message, str(error.get("hint") or "")
            )
