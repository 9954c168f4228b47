"""Settings and hardware of runs, side by side: what all share once, what differs for each.

A page is passed on to others, so it names no host, and of a path only the last part.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.report.load import Run
from sjdvp.report.metrics import values

_ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its value in each run; a single value when all agree."""

    key: str
    values: tuple[str, ...]

    @property
    def common(self) -> bool:
        """Whether all runs agree."""
        return len(self.values) == 1


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Return everything that shapes pixels, and the seed."""
    return _side_by_side(
        [_flat(run.info.pixel_settings) | {"run.seed": run.info.seed} for run in runs]
    )


def hardware(runs: Sequence[Run]) -> list[Setting]:
    """Return where the images were drawn and with which versions."""
    return _side_by_side([_hardware(run) for run in runs])


def _hardware(run: Run) -> dict[str, Any]:
    keys = ("device", "gpu", "dtype", "batch_size")
    measured = {key: _distinct(row.get(key) for row in run.ok.values()) for key in keys}
    memory = values(run.ok.values(), "peak_mem_bytes")
    stored = _flat(
        {
            "hardware": run.info.plain.get("hardware", {}),
            "versions": run.info.plain.get("versions", {}),
        }
    )
    peak = {"peak memory": f"{max(memory) / 2**30:.2f} GiB"} if memory else {}
    return measured | peak | stored | {"created_at": run.info.plain.get("created_at")}


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values if value is not None})) or _ABSENT


def _side_by_side(tables: Sequence[Mapping[str, Any]]) -> list[Setting]:
    found = []
    for key in dict.fromkeys(key for table in tables for key in table):
        values = tuple(_text(table.get(key)) for table in tables)
        if set(values) == {_ABSENT}:
            continue
        found.append(Setting(key, values if len(set(values)) > 1 else values[:1]))
    return found


def _text(value: object) -> str:
    if value is None:
        return _ABSENT
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return Path(text).name if text.startswith(("/", "~")) else text


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= (
            _flat(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": value}
        )
    return flat
