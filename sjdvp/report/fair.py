"""May these runs be compared? Only when nothing but the decoder differs: model, sampling, seed, prompts, device, dtype, batch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sjdvp.errors import FolderError
from sjdvp.presets import GREEDY
from sjdvp.report.load import Run
from sjdvp.text import printable

_CONDITIONS = (
    "device",
    "gpu",
    "dtype",
    "batch_size",
    "revision",
)  # columns of the log that must be alike


def unfair(runs: Sequence[Run]) -> list[str]:
    """Return what differs between the runs besides the decoder; empty when they may be compared."""
    first = _first(runs)
    return [
        f"{run.name}: {line}"
        for run in runs
        if run is not first
        for line in _differences(first, run)
    ]


def require_fair(runs: Sequence[Run]) -> None:
    """Raise FolderError, naming every difference, when the runs differ in more than the decoder."""
    differences = unfair(runs)
    if differences:
        raise FolderError(
            f"these runs differ in more than the decoder ({_first(runs).name} against the others):\n  "
            + "\n  ".join(differences),
            "draw them with `sjdvp compare`, or with equal settings, seed, prompts and device",
        )


def _first(runs: Sequence[Run]) -> Run:
    """Return the run that the others are held against: one whose temperature its decoder left free."""
    return next((run for run in runs if run.decoder not in GREEDY), runs[0])


def _differences(first: Run, other: Run) -> Iterator[str]:
    was, now = _settings(first), _settings(other)
    greedy = other.decoder in GREEDY  # it means temperature 0, whatever was asked
    for key in sorted(was.keys() | now.keys()):
        if was.get(key) != now.get(key) and not (greedy and key == "sampling.temperature"):
            yield f"{key} is {now.get(key)!r}, not {was.get(key)!r}"
    if first.info.seed != other.info.seed:
        yield f"the run seed is {other.info.seed}, not {first.info.seed}"
    yield from _prompt_differences(first, other)
    for key in _CONDITIONS:
        before, after = _column(first, key), _column(other, key)
        if before and after and before != after:
            yield f"{key} is {', '.join(after)}, not {', '.join(before)}"


def _prompt_differences(first: Run, other: Run) -> Iterator[str]:
    both = sorted(first.rows.keys() & other.rows.keys())
    changed = [key for key in both if first.rows[key]["prompt"] != other.rows[key]["prompt"]]
    if changed:
        row = changed[0][0]
        yield f"prompt row {row} is {printable(str(other.rows[changed[0]]['prompt']))[:80]!r}, another one"
    if first.rows and other.rows and not both:
        yield "it has no image in common"


def _settings(run: Run) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section in ("model", "sampling")
        for key, value in _table(run.info.pixel_settings.get(section)).items()
    }


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _column(run: Run, key: str) -> list[str]:
    return sorted({str(row.get(key)) for row in run.ok.values()})
