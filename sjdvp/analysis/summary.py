"""What a analysis says of several decoders, side by side: as JSON, and as tables for people. Imports no torch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sjdvp.analysis.metrics import Findings, Interval, Seen, change, find
from sjdvp.analysis.names import CANDIDATES
from sjdvp.report.load import Run
from sjdvp.report.table import Line, fixed, gain_text, make_lines, percent
from sjdvp.report.table import as_json as table_json

_TIMES = ("step_ms", "latency_s", "speedup_time")  # of a watched decoder they mean nothing
# What likelihoods are held against: the first of these that was watched. The tokens of `same-noise` are those of `ar`.
_BASES = ("ar", "same-noise", "sjd")


@dataclass(frozen=True, slots=True)
class Decoder:
    """One decoder: what its log says, and what was seen of it."""

    line: Line
    found: Findings
    change: Interval | None  # of the mean log-likelihood, from the base


@dataclass(frozen=True, slots=True)
class Account:
    """All decoders of a analysis, and which of them the likelihoods are held against."""

    runs: tuple[Run, ...]
    decoders: tuple[Decoder, ...]
    base: str | None

    @classmethod
    def of(cls, runs: Sequence[Run], seen: Sequence[Seen]) -> "Account":
        """Put together the run folders and what was seen of them, in the same order."""
        at = next((i for name in _BASES for i, run in enumerate(runs) if run.decoder == name), None)
        decoders = tuple(
            Decoder(line, find(mine), None if at is None else change(seen[at], mine))
            for line, mine in zip(make_lines(runs), seen, strict=True)
        )
        return cls(tuple(runs), decoders, None if at is None else decoders[at].line.name)


def as_json(account: Account) -> dict[str, Any]:
    """Return the object of `diagnose --json`; its keys are stable."""
    plain = table_json(account.runs, [decoder.line for decoder in account.decoders])
    decoders = []
    for row, decoder in zip(plain["decoders"], account.decoders, strict=True):
        kept = {key: value for key, value in row.items() if key not in _TIMES}
        kept["ci95"] = row["ci95"]["nfe"]
        decoders.append(
            kept
            | asdict(decoder.found)
            | {"change": asdict(decoder.change) if decoder.change else None}
        )
    return {**plain, "decoders": decoders, "base": account.base}


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people: what it shows, and cells of text."""

    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(account: Account) -> Iterator[Table]:
    """Return the findings as tables, one line a decoder."""
    decoders = account.decoders
    yield _table(
        "Committed tokens whose probability had grown",
        "Standing: committed as a draft that stood. Drawn: in place of a rejected draft, or after the last one.",
        (
            "over life",
            "last forward_pass",
            "2 in a row",
            "3 in a row",
            "4 in a row",
            "last, standing",
            "last, drawn",
        ),
        decoders,
        lambda d: [
            percent(share)
            for share in (
                d.found.growth.over_life,
                *d.found.growth.in_a_row,
                d.found.growth.last_look_standing,
                d.found.growth.last_look_drawn,
            )
        ],
    )
    yield _table(
        "Top tokens that rise at the next forward_pass, after so many rises in a row",
        "In brackets: each code counted by its probability.",
        tuple(f"after {rise.rises}" for rise in decoders[0].found.rises),
        decoders,
        lambda d: [
            f"{percent(rise.again)} ({percent(rise.again_by_mass)})" for rise in d.found.rises
        ],
    )
    yield _table(
        "Total variation between the distribution drafted from and the distribution that came next",
        "In brackets: only where the position was committed at that forward_pass. One less it is the chance of a draft to stand.",
        CANDIDATES,
        decoders,
        lambda d: [
            f"{fixed(far.everywhere, 4)} ({fixed(far.at_commit, 4)})" for far in d.found.distances
        ],
    )
    yield _table(
        "Forwards against fidelity",
        f"Nats a code, under the sampled distribution; the change is against {account.base}, the surplus (log-likelihood plus entropy, as a "
        "share of the entropy) against exact sampling, which makes it 0; with 95 % intervals over prompts.",
        ("NFE", "NFE vs ar", "NFE vs sjd", "log-likelihood", "change", "entropy", "surplus"),
        decoders,
        _fidelity_cells,
    )


def _table(
    title: str,
    note: str,
    headings: Sequence[str],
    decoders: Sequence[Decoder],
    cells: Callable[[Decoder], Sequence[str]],
) -> Table:
    rows = tuple((d.line.name, d.line.distribution, *cells(d)) for d in decoders)
    return Table(title, note, ("decoder", "distribution", *headings), rows)


def _fidelity_cells(d: Decoder) -> list[str]:
    found, gains = d.found.fidelity, d.line.gains
    return [
        fixed(d.line.figures.nfe, 1),
        gain_text(gains["ar"]["nfe"]),
        gain_text(gains["sjd"]["nfe"]),
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
