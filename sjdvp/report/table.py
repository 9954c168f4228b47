"""The table of decoders: one line a run, as numbers, JSON, Markdown and CSV. A speed never stands without `lossless`."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sjdvp.report.fair import unfair
from sjdvp.report.load import Run
from sjdvp.report.metrics import Figures, figures
from sjdvp.report.pairs import Gain, gain, same_tokens

BASES = ("ar", "sjd")
_COSTS = {
    "nfe": "nfe",
    "time": "latency_s",
}  # what a speed-up is in, and the column of the log that holds it


@dataclass(frozen=True, slots=True)
class Line:
    """One decoder of the table."""

    name: str
    decoder: str
    window: int
    lossless: bool
    greedy: bool
    failed: int
    figures: Figures
    gains: Mapping[
        str, Mapping[str, Gain | None]
    ]  # base -> nfe|time -> gain; all None where runs may not be compared
    same_tokens_as_ar: float | None

    @property
    def distribution(self) -> str:
        """Say which distribution the images follow."""
        return ("lossless" if self.lossless else "not lossless") + (
            ", greedy" if self.greedy else ""
        )


def make_lines(runs: Sequence[Run]) -> list[Line]:
    """Return the table of `runs`. Speed-ups are left out when the runs differ in more than the decoder."""
    fair = not unfair(runs)
    return [_line(run, runs if fair else []) for run in runs]


def _line(run: Run, others: Sequence[Run]) -> Line:
    bases = {name: _base(name, run, others) for name in BASES}
    plain = bases["ar"]
    return Line(
        name=run.name,
        decoder=run.decoder,
        window=run.window,
        lossless=run.lossless,
        greedy=run.greedy,
        failed=len(run.failed),
        figures=figures(list(run.ok.values())),
        gains={name: _gains(base, run) for name, base in bases.items()},
        same_tokens_as_ar=same_tokens(plain, run) if plain else None,
    )


def _gains(base: Run | None, run: Run) -> dict[str, Gain | None]:
    return {cost: gain(base, run, key) if base else None for cost, key in _COSTS.items()}


def _base(name: str, run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the run of the decoder `name` to hold `run` against: of several, one of the same window, else the first."""
    candidates = [other for other in runs if other.decoder == name]
    return next(
        (other for other in candidates if other.window == run.window),
        candidates[0] if candidates else None,
    )


def as_json(runs: Sequence[Run], lines: Sequence[Line]) -> dict[str, Any]:
    """Return the object of `compare --json`; its keys are stable."""
    rows = [row for run in runs for row in run.rows.values()]
    devices = sorted({str(row.get("gpu") or row["device"]) for row in rows if row.get("device")})
    return {
        "decoders": [_json_line(line) for line in lines],
        "prompts": len({row["index"] for row in rows}),
        "device": ", ".join(devices) or None,
    }


def _json_line(line: Line) -> dict[str, Any]:
    found = line.figures
    latency = found.latency_s
    return {
        "decoder": line.name,
        "lossless": line.lossless,
        "greedy": line.greedy,
        "images": found.images,
        "failed": line.failed,
        "nfe": found.nfe,
        "tokens_per_nfe": found.tokens_per_nfe,
        "accept_rate": found.accept_rate,
        "step_ms": found.step_ms,
        "latency_s": {"median": latency.median, "p90": latency.p90} if latency else None,
        **{
            f"speedup_{cost}": {base: _value(line.gains[base][cost]) for base in BASES}
            for cost in _COSTS
        },
        "ci95": {
            cost: {base: _interval(line.gains[base][cost]) for base in BASES} for cost in _COSTS
        },
        "same_tokens_as_ar": line.same_tokens_as_ar,
    }


def _value(found: Gain | None) -> float | None:
    return found.value if found else None


def _interval(found: Gain | None) -> list[float] | None:
    return (
        [found.low, found.high]
        if found and found.low is not None and found.high is not None
        else None
    )


FIGURES = (
    "decoder",
    "distribution",
    "NFE",
    "tokens/forward",
    "accepted",
    "step ms",
    "latency s",
    "p90 s",
    "images",
)
GAINS = (
    "decoder",
    "distribution",
    "NFE vs ar",
    "time vs ar",
    "NFE vs sjd",
    "time vs sjd",
    "same tokens as ar",
)


def figure_cells(line: Line) -> list[str]:
    """Return the cells under `FIGURES`, for people."""
    found = line.figures
    latency = found.latency_s
    return [
        line.name,
        line.distribution,
        fixed(found.nfe, 1),
        fixed(found.tokens_per_nfe, 2),
        percent(found.accept_rate),
        fixed(found.step_ms, 1),
        fixed(latency.median if latency else None, 3),
        fixed(latency.p90 if latency else None, 3),
        f"{found.images}" + (f" ({line.failed} failed)" if line.failed else ""),
    ]


def gain_cells(line: Line) -> list[str]:
    """Return the cells under `GAINS`, for people."""
    gains = [gain_text(line.gains[base][cost]) for base in BASES for cost in _COSTS]
    return [line.name, line.distribution, *gains, percent(line.same_tokens_as_ar)]


def gain_text(found: Gain | None) -> str:
    """Return a speed-up with its interval."""
    if found is None:
        return "–"
    interval = (
        f" ({found.low:.2f}–{found.high:.2f})"
        if found.low is not None and found.high is not None
        else ""
    )
    return f"{found.value:.2f}×{interval}"


def fixed(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """Return a share in percent, or a dash."""
    return "–" if share is None else f"{100 * share:.1f} %"


def as_csv(lines: Sequence[Line]) -> str:
    """Return the table as CSV: one line a decoder, bare numbers, units in the headings."""
    rows = [_csv_cells(line) for line in lines]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_cells(line: Line) -> dict[str, Any]:
    found = _json_line(line)
    latency = found["latency_s"] or {"median": None, "p90": None}
    cells = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in found.items()
        if not isinstance(value, Mapping) and key != "latency_s"
    }
    cells |= {f"latency_{key}_s": value for key, value in latency.items()}
    for base in BASES:
        for cost in _COSTS:
            low, high = found["ci95"][cost][base] or (None, None)
            name = f"speedup_{cost}_vs_{base}"
            cells |= {
                name: found[f"speedup_{cost}"][base],
                f"{name}_low": low,
                f"{name}_high": high,
            }
    return cells
