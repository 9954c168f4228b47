"""The few figures at the top of the page. A speed is always shown with the distribution it keeps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sjdvp.report.load import Run
from sjdvp.report.pairs import Gain
from sjdvp.report.table import BASES, Line, fixed, gain_text, percent


@dataclass(frozen=True, slots=True)
class Card:
    """One figure in large type; `note` says what it means."""

    label: str
    value: str
    note: str


def make_cards(runs: Sequence[Run], lines: Sequence[Line]) -> list[Card]:
    """Return the cards of a page."""
    cards = list(_comparison(lines)) if len(lines) > 1 else _single(lines[0])
    return [*cards, _images(lines), _device(runs)]


def _comparison(lines: Sequence[Line]) -> Iterator[Card]:
    """Say which decoder that keeps the model's distribution is cheapest, in time and in forward passes."""
    for cost, label in (("time", "Fastest"), ("nfe", "Fewest forward passes")):
        for base in BASES:
            gains = [
                (found, line)
                for line in lines
                if (found := line.gains[base][cost]) and line.lossless and not line.greedy
            ]
            if gains:
                best, line = max(gains, key=lambda pair: pair[0].value)
                yield Card(f"{label}, lossless", line.name, f"{_words(best, cost)} than {base}")
                break


def _words(found: Gain, cost: str) -> str:
    return f"{gain_text(found)} {'less time' if cost == 'time' else 'fewer forward passes'}"


def _single(line: Line) -> list[Card]:
    found = line.figures
    latency = found.latency_s
    return [
        Card(
            "Forwards an image",
            fixed(found.nfe, 1),
            f"{fixed(found.tokens_per_nfe, 2)} tokens each, {line.distribution}",
        ),
        Card(
            "Accepted drafts",
            percent(found.accept_rate),
            f"window {line.window}, {line.distribution}",
        ),
        Card(
            "Latency",
            f"{fixed(latency.median if latency else None, 2)} s",
            f"median; 90 % within {fixed(latency.p90 if latency else None, 2)} s",
        ),
    ]


def _images(lines: Sequence[Line]) -> Card:
    failed = sum(line.failed for line in lines)
    return Card(
        "Images",
        f"{sum(line.figures.images for line in lines):,}",
        f"{failed:,} failed" if failed else "none failed",
    )


def _device(runs: Sequence[Run]) -> Card:
    rows = [row for run in runs for row in run.ok.values()]
    names = sorted(
        {
            str(row.get("gpu") or row.get("device"))
            for row in rows
            if row.get("gpu") or row.get("device")
        }
    )
    more = {str(row.get("dtype")) for row in rows} - {"None"}
    sizes = {str(row.get("batch_size")) for row in rows} - {"None"}
    note = [", ".join(sorted(more))] if more else []
    note += [f"batch size {', '.join(sorted(sizes))}"] if sizes else []
    return Card("Device", ", ".join(names) or "unknown", ", ".join(note))
