"""Sections of a page beside the table and the charts: cards, categories, settings, hardware."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.report.load import Run
from sjdvp.report.metrics import Metrics, Speedup, metrics, values
from sjdvp.report.table import BASES, DecoderResult, fixed, percent
from sjdvp.runs.jsonl import JsonRow

_MOST_GROUPS = 40  # a column with more values is not a category
_ABSENT = "–"


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One number in large type; `note` says what it means."""

    label: str
    value: str
    note: str


def make_cards(runs: Sequence[Run], results: Sequence[DecoderResult]) -> list[KeyFigure]:
    """Return the cards of a page."""
    cards = list(_comparison(results)) if len(results) > 1 else _single(results[0])
    return [*cards, _images(results), _device(runs)]


def _comparison(results: Sequence[DecoderResult]) -> Iterator[KeyFigure]:
    """Name the lossless decoder that is cheapest, in time and in forward passes."""
    for cost, label in (("time", "Fastest"), ("nfe", "Fewest forward passes")):
        for base in BASES:
            found = [
                (speedup, result)
                for result in results
                if (speedup := result.speedups[base][cost]) and result.exact
            ]
            if found:
                best, result = max(found, key=lambda pair: pair[0].value)
                yield KeyFigure(
                    f"{label}, lossless", result.name, f"{_words(best, cost)} than {base}"
                )
                break


def _words(found: Speedup, cost: str) -> str:
    return f"{found.value:.1f}× {'faster' if cost == 'time' else 'fewer forward passes'}"


def _single(result: DecoderResult) -> list[KeyFigure]:
    found = result.metrics
    latency = found.latency_s
    return [
        KeyFigure(
            "Forward passes per image (NFE)",
            fixed(found.nfe, 1),
            f"{fixed(found.tokens_per_nfe, 2)} tokens/NFE, {result.label}",
        ),
        KeyFigure(
            "Acceptance rate",
            percent(found.accept_rate),
            f"window {result.window}, {result.label}",
        ),
        KeyFigure(
            "Latency",
            f"{fixed(latency.median if latency else None, 2)} s",
            f"median; 90 % within {fixed(latency.p90 if latency else None, 2)} s",
        ),
    ]


def _images(results: Sequence[DecoderResult]) -> KeyFigure:
    failed = sum(result.failed for result in results)
    images = sum(result.metrics.images for result in results)
    return KeyFigure("Images", f"{images:,}", f"{failed:,} failed" if failed else "none failed")


def _device(runs: Sequence[Run]) -> KeyFigure:
    rows = [row for run in runs for row in run.ok.values()]
    names = {str(row.get("gpu") or row.get("device")) for row in rows} - {"None"}
    dtypes = {str(row.get("dtype")) for row in rows} - {"None"}
    sizes = {str(row.get("batch_size")) for row in rows} - {"None"}
    note = [", ".join(sorted(dtypes))] if dtypes else []
    note += sorted({f"{run.quantize} weights" for run in runs if run.quantize})
    note += [f"batch size {', '.join(sorted(sizes))}"] if sizes else []
    return KeyFigure("Device", ", ".join(sorted(names)) or "unknown", ", ".join(note))


@dataclass(frozen=True, slots=True)
class Group:
    """The prompts of one category: their number, and the metrics of each run over them."""

    name: str
    prompts: int
    metrics: tuple[Metrics, ...]


@dataclass(frozen=True, slots=True)
class Categories:
    """One column of the prompt file, as groups."""

    column: str
    groups: tuple[Group, ...]


def categories(runs: Sequence[Run]) -> list[Categories]:
    """Return a table for each column of the prompt file that sorts prompts into a few groups."""
    extras = {index: extra for run in runs for index, extra in run.extras.items()}
    done = sorted({index for run in runs for index, _ in run.ok})
    found = []
    for column in dict.fromkeys(column for index in done for column in extras.get(index, {})):
        names = {
            index: str(value)
            for index in done
            if isinstance(value := extras.get(index, {}).get(column), str | int)
        }
        if 2 <= len(set(names.values())) <= min(_MOST_GROUPS, len(done) // 2):
            found.append(_categories(column, names, runs))
    return found


def _categories(column: str, names: dict[int, str], runs: Sequence[Run]) -> Categories:
    rows: list[defaultdict[str, list[JsonRow]]] = []
    for run in runs:
        by_name: defaultdict[str, list[JsonRow]] = defaultdict(list)
        for (index, _), row in run.ok.items():
            if index in names:
                by_name[names[index]].append(row)
        rows.append(by_name)
    members = defaultdict(set)
    for index, name in names.items():
        members[name].add(index)
    groups = (
        Group(name, len(members[name]), tuple(metrics(found[name]) for found in rows))
        for name in sorted(members)
    )
    return Categories(column, tuple(groups))


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its value in each run, or a single value when all agree."""

    key: str
    values: tuple[str, ...]

    @property
    def common(self) -> bool:
        """Whether all runs agree."""
        return len(self.values) == 1


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Return everything that shapes pixels, and the seed."""
    tables = [_flat(run.info.pixel_settings) | {"run.seed": run.info.seed} for run in runs]
    return _side_by_side(tables)


def hardware(runs: Sequence[Run]) -> list[Setting]:
    """Return the devices and versions the images were made with.

    A page is passed on to others: it names no host, and only the last part of a path.
    """
    return _side_by_side([_hardware(run) for run in runs])


def _hardware(run: Run) -> dict[str, Any]:
    keys = ("device", "gpu", "dtype", "quantize", "batch_size")
    measured = {key: _distinct(row.get(key) for row in run.ok.values()) for key in keys}
    memory = values(run.ok.values(), "peak_mem_bytes")
    plain = run.info.plain
    stored = _flat({key: plain.get(key, {}) for key in ("hardware", "versions")})
    peak = {"peak memory": f"{max(memory) / 2**30:.2f} GiB"} if memory else {}
    return measured | peak | stored | {"created_at": plain.get("created_at")}


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values if value is not None})) or _ABSENT


def _side_by_side(tables: Sequence[Mapping[str, Any]]) -> list[Setting]:
    found = []
    for key in dict.fromkeys(key for table in tables for key in table):
        values = tuple(_text(table.get(key)) for table in tables)
        if set(values) != {_ABSENT}:
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
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat
