"""The page of a analysis: its tables, and charts of what they hold. Imports no torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp import __version__
from sjdvp.analysis.summary import Account, Decoder, Table, change_text, tables
from sjdvp.report import svg
from sjdvp.report.page import Chart, ChartRow
from sjdvp.report.table import fixed, percent
from sjdvp.report.write import html
from sjdvp.runs.atomic import write_atomic

_FAITHFUL = 0.02  # a change of the mean log-likelihood that counts as small; the mark in the chart


@dataclass(frozen=True, slots=True)
class Page:
    """Everything on the page."""

    title: str
    subtitle: str
    names: tuple[str, ...]
    tables: tuple[Table, ...]
    window: tuple[Chart, ...]
    prediction: tuple[Chart, ...]
    cost: Chart | None
    version: str


def write_page(account: Account, found: Mapping[str, Any], file: Path) -> list[Path]:
    """Write the page `file` (.html), and what it shows as .json beside it; raises StorageError when the disk refuses."""
    texts = {
        file: html(make_page(account), "analysis.html.j2"),
        file.with_suffix(".json"): json.dumps(found, indent=1) + "\n",
    }
    for path, text in texts.items():
        write_atomic(path, text.encode("utf-8", "backslashreplace"))
    return list(texts)


def make_page(account: Account) -> Page:
    """Gather what the page shows."""
    decoders = account.decoders
    images = sum(decoder.line.figures.images for decoder in decoders)
    return Page(
        title=f"What {len(decoders)} decoders do"
        if len(decoders) > 1
        else f"What {decoders[0].line.name} does",
        subtitle=f"{images} images, watched while they were drawn",
        names=tuple(decoder.line.name for decoder in decoders),
        tables=tuple(tables(account)),
        window=tuple(_window(decoders)),
        prediction=tuple(_prediction(decoders)),
        cost=_cost(account),
        version=__version__,
    )


def _window(decoders: Sequence[Decoder]) -> Iterator[Chart]:
    for title, note, shares in (
        (
            "Accepted, of the drafts tested",
            "by place in the window",
            [d.found.columns.accepted for d in decoders],
        ),
        (
            "Chance to stand, tested or not",
            "by place in the window",
            [d.found.columns.overlap for d in decoders],
        ),
        (
            "Distance to the next distribution, drafting plainly",
            "by place in the window",
            [d.found.distances[0].by_column for d in decoders],
        ),
    ):
        rows = [_columns(i, title, found) for i, found in enumerate(shares)]
        yield Chart(title, note, tuple(rows), ("first", "last"))


def _columns(run: int, title: str, shares: Sequence[float | None]) -> ChartRow:
    known = [share for share in shares if share is not None]
    first = fixed(known[0] if known else None, 2)
    return ChartRow(
        run,
        svg.columns(
            [share or 0.0 for share in shares], f"{title}: {first} at the first place", top=1.0
        ),
        first,
    )


def _prediction(decoders: Sequence[Decoder]) -> Iterator[Chart]:
    for i, decoder in enumerate(decoders):
        yield from _distances(i, decoder)
        rows = [
            ChartRow(
                i,
                svg.bar(r.again, None, None, 1.0, f"after {r.rises}: {percent(r.again)}"),
                percent(r.again),
                part=f"{r.rises}",
            )
            for r in decoder.found.rises
            if r.again is not None
        ]
        yield Chart(
            f"{decoder.line.name}: rises again, after so many",
            "share of top tokens",
            tuple(rows),
            ("0", "1"),
        )


def _distances(run: int, decoder: Decoder) -> Iterator[Chart]:
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
            svg.bar(far / plain, None, None, top, f"{distribution}: {far:.4f}"),
            fixed(far, 4),
            part=distribution,
        )
        for distribution, far in found.items()
    ]
    yield Chart(
        f"{decoder.line.name}: distance to the next distribution",
        "total variation; dashes: the plain distribution",
        tuple(rows),
        (),
    )


def _cost(account: Account) -> Chart | None:
    moved = {i: d.change for i, d in enumerate(account.decoders) if d.change is not None}
    if not moved:
        return None
    sizes = {i: abs(change.value) / _FAITHFUL for i, change in moved.items()}
    top = 1.02 * max(1.0, *sizes.values())
    rows = [
        ChartRow(
            i,
            svg.bar(size, None, None, top, change_text(moved[i])),
            f"{100 * moved[i].value:+.1f} %",
            account.decoders[i].line.distribution,
        )
        for i, size in sizes.items()
    ]
    return Chart(
        f"Log-likelihood against {account.base}", f"dashes: {percent(_FAITHFUL)}", tuple(rows), ()
    )
