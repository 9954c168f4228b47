"""The analysis of several decoders: JSON, text tables, and a page of charts. Imports no torch."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sjdvp import __version__
from sjdvp.analysis.metrics import (
    PREDICTIONS,
    AnalysisMetrics,
    ImageSums,
    Interval,
    change,
    metrics_of,
)
from sjdvp.report.charts import Chart, ChartRow, bar, columns
from sjdvp.report.load import Run
from sjdvp.report.table import DecoderResult, fixed, make_results, percent, speedup_text
from sjdvp.report.table import as_json as table_json
from sjdvp.report.write import html
from sjdvp.runs.atomic import write_atomic
from sjdvp.text import counted

_TIMES = ("step_ms", "latency_s", "speedup_time")  # meaningless for an observed decoder
# Likelihoods are compared with the first of these. The tokens of `same-noise` are those of `ar`.
_BASES = ("ar", "same-noise", "sjd")
_SMALL = 0.02  # a change of the mean log-likelihood up to this is small; the mark in the chart


@dataclass(frozen=True, slots=True)
class ObservedDecoder:
    """One decoder: what its log says, and what was observed."""

    result: DecoderResult
    found: AnalysisMetrics
    change: Interval | None  # of the mean log-likelihood, from the base


@dataclass(frozen=True, slots=True)
class Analyzed:
    """All decoders of an analysis, and the one that likelihoods are compared with."""

    runs: tuple[Run, ...]
    decoders: tuple[ObservedDecoder, ...]
    base: str | None

    @classmethod
    def of(cls, runs: Sequence[Run], sums: Sequence[ImageSums]) -> "Analyzed":
        """Combine run folders and the sums of their images, in the same order."""
        at = next((i for name in _BASES for i, run in enumerate(runs) if run.decoder == name), None)
        decoders = tuple(
            ObservedDecoder(result, metrics_of(own), None if at is None else change(sums[at], own))
            for result, own in zip(make_results(runs), sums, strict=True)
        )
        return cls(tuple(runs), decoders, None if at is None else decoders[at].result.name)


def as_json(analyzed: Analyzed) -> dict[str, Any]:
    """Return the object of `analyze --json`; its keys are stable."""
    plain = table_json(analyzed.runs, [decoder.result for decoder in analyzed.decoders])
    decoders = []
    for row, decoder in zip(plain["decoders"], analyzed.decoders, strict=True):
        kept = {key: value for key, value in row.items() if key not in _TIMES}
        kept["ci95"] = row["ci95"]["nfe"]
        moved = asdict(decoder.change) if decoder.change else None
        decoders.append(kept | asdict(decoder.found) | {"change": moved})
    return {**plain, "decoders": decoders, "base": analyzed.base}


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table: what it shows, and cells of text."""

    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(analyzed: Analyzed) -> Iterator[TextTable]:
    """Yield the metrics as tables, one row per decoder."""
    decoders = analyzed.decoders
    yield _table(
        "Committed tokens whose probability had grown",
        "Accepted: committed as an accepted draft token. Sampled: resampled and bonus tokens.",
        (
            *("over the window", "last iteration", "2 in a row", "3 in a row", "4 in a row"),
            *("last, accepted", "last, sampled"),
        ),
        decoders,
        _growth_cells,
    )
    yield _table(
        "Top tokens that rise in the next iteration, after so many rises in a row",
        "In brackets: each token weighted by its probability.",
        tuple(f"after {rise.rises}" for rise in decoders[0].found.rises),
        decoders,
        lambda d: [
            f"{percent(rise.again)} ({percent(rise.again_by_mass)})" for rise in d.found.rises
        ],
    )
    yield _table(
        "Total variation between a predicted distribution and the next distribution",
        "In brackets: only where the position was committed in that iteration. 1 minus it is the "
        "acceptance probability of the draft token.",
        PREDICTIONS,
        decoders,
        lambda d: [
            f"{fixed(far.everywhere, 4)} ({fixed(far.at_commit, 4)})" for far in d.found.distances
        ],
    )
    yield _table(
        "Forward passes and fidelity",
        "Log-likelihood and entropy are in nats per token under the model. The change is relative "
        f"to {analyzed.base}. The surplus is log-likelihood plus entropy, relative to the entropy; "
        "exact sampling makes it 0. In brackets: 95 % intervals over prompts.",
        (
            *("NFE", "NFE speedup vs ar", "NFE speedup vs sjd"),
            *("log-likelihood", "change", "entropy", "surplus"),
        ),
        decoders,
        _fidelity_cells,
    )


def _table(
    title: str,
    note: str,
    headings: Sequence[str],
    decoders: Sequence[ObservedDecoder],
    cells: Callable[[ObservedDecoder], Sequence[str]],
) -> TextTable:
    rows = tuple((d.result.name, d.result.label, *cells(d)) for d in decoders)
    return TextTable(title, note, ("decoder", "output", *headings), rows)


def _growth_cells(d: ObservedDecoder) -> list[str]:
    growth = d.found.growth
    shares = (growth.over_window, *growth.in_a_row)
    ends = (growth.last_iteration_accepted, growth.last_iteration_sampled)
    return [percent(share) for share in (*shares, *ends)]


def _fidelity_cells(d: ObservedDecoder) -> list[str]:
    found, speedups = d.found.fidelity, d.result.speedups
    return [
        fixed(d.result.metrics.nfe, 1),
        speedup_text(speedups["ar"]["nfe"]),
        speedup_text(speedups["sjd"]["nfe"]),
        fixed(found.log_likelihood, 4),
        change_text(d.change),
        fixed(found.entropy, 4),
        change_text(found.surplus),
    ]


def change_text(found: Interval | None) -> str:
    """Return a change in percent, with its interval."""
    if found is None:
        return "–"
    return f"{100 * found.value:+.1f} % ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


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
