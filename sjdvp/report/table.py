"""The table of decoders, one row per run: as numbers, JSON, Markdown and CSV.

A speedup is never shown without saying whether the decoder is lossless.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sjdvp.config import lossless_label
from sjdvp.report.load import Run, unfair
from sjdvp.report.metrics import Metrics, Speedup, metrics, same_tokens, speedup

BASES = ("ar", "sjd")
_COSTS = {"nfe": "nfe", "time": "latency_s"}  # what a speedup is in, and its column of the log


@dataclass(frozen=True, slots=True)
class DecoderResult:
    """One row of the table."""

    name: str
    decoder: str
    window: int
    lossless: bool
    quantize: str | None
    greedy: bool
    failed: int
    metrics: Metrics
    # base -> nfe or time -> speedup; all None where the runs may not be compared
    speedups: Mapping[str, Mapping[str, Speedup | None]]
    same_tokens_as_ar: float | None

    @property
    def label(self) -> str:
        """Say whether the output distribution is that of ordinary sampling."""
        lossless = lossless_label(self.lossless, self.quantize)
        return f"{lossless}, greedy" if self.greedy else lossless

    @property
    def exact(self) -> bool:
        """Whether the output distribution is that of ordinary sampling."""
        return self.lossless and not self.greedy


def make_results(runs: Sequence[Run]) -> list[DecoderResult]:
    """Return the table. It has no speedups when the runs differ in more than the decoder."""
    fair = not unfair(runs)
    return [_result(run, runs if fair else []) for run in runs]


def _result(run: Run, others: Sequence[Run]) -> DecoderResult:
    bases = {name: _base(name, run, others) for name in BASES}
    ar = bases["ar"]
    return DecoderResult(
        name=run.name,
        decoder=run.decoder,
        window=run.window,
        lossless=run.lossless,
        quantize=run.quantize,
        greedy=run.greedy,
        failed=len(run.failed),
        metrics=metrics(list(run.ok.values())),
        speedups={name: _speedups(base, run) for name, base in bases.items()},
        same_tokens_as_ar=same_tokens(ar, run) if ar else None,
    )


def _speedups(base: Run | None, run: Run) -> dict[str, Speedup | None]:
    return {cost: speedup(base, run, key) if base else None for cost, key in _COSTS.items()}


def _base(name: str, run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the run of decoder `name` to compare with: one of the same window, else the first."""
    candidates = [other for other in runs if other.decoder == name]
    same_window = (other for other in candidates if other.window == run.window)
    return next(same_window, candidates[0] if candidates else None)


def as_json(runs: Sequence[Run], results: Sequence[DecoderResult]) -> dict[str, Any]:
    """Return the object of `compare --json`; its keys are stable."""
    rows = [row for run in runs for row in run.rows.values()]
    devices = sorted({str(row.get("gpu") or row["device"]) for row in rows if row.get("device")})
    return {
        "decoders": [_json_row(result) for result in results],
        "prompts": len({row["index"] for row in rows}),
        "device": ", ".join(devices) or None,
    }


def _json_row(result: DecoderResult) -> dict[str, Any]:
    found, speedups = result.metrics, result.speedups
    latency = found.latency_s
    return {
        "decoder": result.name,
        "lossless": result.lossless,
        "quantize": result.quantize,
        "greedy": result.greedy,
        "images": found.images,
        "failed": result.failed,
        "nfe": found.nfe,
        "tokens_per_nfe": found.tokens_per_nfe,
        "accept_rate": found.accept_rate,
        "step_ms": found.step_ms,
        "latency_s": {"median": latency.median, "p90": latency.p90} if latency else None,
        **{
            f"speedup_{cost}": {base: _value(speedups[base][cost]) for base in BASES}
            for cost in _COSTS
        },
        "ci95": {
            cost: {base: _interval(speedups[base][cost]) for base in BASES} for cost in _COSTS
        },
        "same_tokens_as_ar": result.same_tokens_as_ar,
    }


def _value(found: Speedup | None) -> float | None:
    return found.value if found else None


def _interval(found: Speedup | None) -> list[float] | None:
    if found is None or found.low is None or found.high is None:
        return None
    return [found.low, found.high]


METRIC_HEADINGS = (
    *("decoder", "output", "NFE", "tokens/NFE", "accepted", "step ms"),
    *("latency s", "p90 s", "images"),
)
SPEEDUP_HEADINGS = (
    *("decoder", "output", "NFE speedup vs ar", "time speedup vs ar"),
    *("NFE speedup vs sjd", "time speedup vs sjd", "same tokens as ar"),
)


def metric_cells(result: DecoderResult) -> list[str]:
    """Return the cells under `METRIC_HEADINGS`."""
    found = result.metrics
    latency = found.latency_s
    return [
        result.name,
        result.label,
        fixed(found.nfe, 1),
        fixed(found.tokens_per_nfe, 2),
        percent(found.accept_rate),
        fixed(found.step_ms, 1),
        fixed(latency.median if latency else None, 3),
        fixed(latency.p90 if latency else None, 3),
        f"{found.images}" + (f" ({result.failed} failed)" if result.failed else ""),
    ]


def speedup_cells(result: DecoderResult) -> list[str]:
    """Return the cells under `SPEEDUP_HEADINGS`."""
    speedups = [speedup_text(result.speedups[base][cost]) for base in BASES for cost in _COSTS]
    return [result.name, result.label, *speedups, percent(result.same_tokens_as_ar)]


def speedup_text(found: Speedup | None) -> str:
    """Return a speedup with its interval."""
    if found is None:
        return "–"
    interval = _interval(found)
    text = f"{found.value:.2f}×"
    return f"{text} ({interval[0]:.2f}–{interval[1]:.2f})" if interval else text


def fixed(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """Return a share in percent, or a dash."""
    return "–" if share is None else f"{100 * share:.1f} %"


def as_csv(results: Sequence[DecoderResult]) -> str:
    """Return the table as CSV: one line per decoder, plain numbers, units in the headings."""
    rows = [_csv_cells(result) for result in results]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_cells(result: DecoderResult) -> dict[str, Any]:
    found = _json_row(result)
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
            value = found[f"speedup_{cost}"][base]
            cells |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return cells
