"""The page of an analysis: its tables, and charts of them. Imports no torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp import __version__
from sjdvp.analysis.summary import Analyzed, ObservedDecoder, TextTable, change_text, tables
from sjdvp.report.charts import Chart, ChartRow, bar, columns
from sjdvp.report.table import fixed, percent
from sjdvp.report.write import html
from sjdvp.runs.atomic import write_atomic
from sjdvp.text import counted

_SMALL = 0.02  # a change of the mean log-likelihood up to this is small; the mark in the chart


@dataclass(frozen=True, slots=True)
class AnalysisPage:
    """Everything on the page."""

    title: str
    subtitle: str
    names: tuple[str, ...]
    tables: tuple[TextTable, ...]
    window: tuple[Chart, ...]
    prediction: tuple[Chart, ...]
    cost: Chart | None
    version: str


def write_page(analyzed: Analyzed, found: Mapping[str, Any], file: Path) -> list[Path]:
    """Write the page `file` (.html) and .json beside it; StorageError when the disk refuses."""
    texts = {
        file: html(make_page(analyzed), "analysis.html.j2"),
        file.with_suffix(".json"): json.dumps(found, indent=1) + "\n",
    }
    for path, text in texts.items():
        write_atomic(path, text.encode("utf-8", "backslashreplace"))
    return list(texts)


def make_page(analyzed: Analyzed) -> AnalysisPage:
    """Gather what the page shows."""
    decoders = analyzed.decoders
    images = sum(decoder.result.metrics.images for decoder in decoders)
    several = f"Analysis of {len(decoders)} decoders"
    return AnalysisPage(
        title=several if len(decoders) > 1 else f"Analysis of {decoders[0].result.name}",
        subtitle=f"{counted(images, 'image')}, observed iteration by iteration",
        names=tuple(decoder.result.name for decoder in decoders),
        tables=tuple(tables(analyzed)),
        window=tuple(_window(decoders)),
        prediction=tuple(_prediction(decoders)),
        cost=_cost(analyzed),
        version=__version__,
    )


def _window(decoders: Sequence[ObservedDecoder]) -> Iterator[Chart]:
    found = [decoder.found for decoder in decoders]
    for title, shares in (
        ("Acceptance rate of tested draft tokens", [f.window.accepted for f in found]),
        ("Acceptance probability, tested or not", [f.window.overlap for f in found]),
        (
            "Distance to the next distribution, without prediction",
            [f.distances[0].by_position for f in found],
        ),
    ):
        rows = [_positions(decoders[i], i, title, line) for i, line in enumerate(shares)]
        yield Chart(title, "by position in the window", tuple(rows), ("first", "last"))


def _positions(
    decoder: ObservedDecoder, run: int, title: str, shares: Sequence[float | None]
) -> ChartRow:
    known = [share for share in shares if share is not None]
    first = fixed(known[0] if known else None, 2)
    heights = [share or 0.0 for share in shares]
    shapes = columns(heights, f"{title}: {first} at the first position", top=1.0)
    return ChartRow(run, shapes, first, decoder.result.label)


def _prediction(decoders: Sequence[ObservedDecoder]) -> Iterator[Chart]:
    for i, decoder in enumerate(decoders):
        name = f"{decoder.result.name} ({decoder.result.label})"
        yield from _distances(i, name, decoder)
        rows = [
            ChartRow(
                i,
                bar(r.again, None, None, 1.0, f"after {r.rises}: {percent(r.again)}"),
                percent(r.again),
                part=f"{r.rises}",
            )
            for r in decoder.found.rises
            if r.again is not None
        ]
        title = f"{name}: rises again, after so many rises in a row"
        yield Chart(title, "share of top tokens", tuple(rows), ("0", "1"))


def _distances(run: int, name: str, decoder: ObservedDecoder) -> Iterator[Chart]:
    found = {
        far.distribution: far.at_commit
        for far in decoder.found.distances
        if far.at_commit is not None
    }
    plain = found.get("plain")
    if not plain:
        return
    top = 1.02 * max(found.values()) / plain
    rows = [
        ChartRow(
            run,
            bar(far / plain, None, None, top, f"{prediction}: {far:.4f}"),
            fixed(far, 4),
            part=prediction,
        )
        for prediction, far in found.items()
    ]
    note = "total variation; dashes: without prediction"
    yield Chart(f"{name}: distance to the next distribution", note, tuple(rows), ())


def _cost(analyzed: Analyzed) -> Chart | None:
    moved = {i: d.change for i, d in enumerate(analyzed.decoders) if d.change is not None}
    if not moved:
        return None
    sizes = {i: abs(change.value) / _SMALL for i, change in moved.items()}
    top = 1.02 * max(1.0, *sizes.values())
    rows = [
        ChartRow(
            i,
            bar(size, None, None, top, change_text(moved[i])),
            f"{100 * moved[i].value:+.1f} %",
            analyzed.decoders[i].result.label,
        )
        for i, size in sizes.items()
    ]
    title = f"Change of the log-likelihood against {analyzed.base}"
    return Chart(title, f"dashes: {percent(_SMALL)}", tuple(rows), ())
