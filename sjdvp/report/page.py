"""What a page shows, gathered from runs: plain data for the templates.

Images are small WebP copies inside the HTML, each within a limit of bytes.
"""

import base64
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from sjdvp.report.charts import (
    Chart,
    acceptance_chart,
    distribution_charts,
    seconds,
    speedup_charts,
)
from sjdvp.report.load import Run, unfair
from sjdvp.report.metrics import number
from sjdvp.report.sections import (
    Categories,
    KeyFigure,
    Setting,
    categories,
    hardware,
    make_cards,
    settings,
)
from sjdvp.report.table import DecoderResult
from sjdvp.runs.jsonl import JsonRow
from sjdvp.text import counted

# Longest side and quality, best first: the first that fits the limit is taken.
_SIZES = (
    (256, 85),
    (256, 70),
    (192, 70),
    (160, 65),
    (128, 60),
    (128, 45),
    (96, 45),
    (96, 25),
    (64, 25),
    (48, 10),
)
_TYPICAL = 0.15  # base64 bytes per pixel of a photo: larger sizes are not tried

PAGE_BYTES = 10_000_000  # of images on one page, in base64
MOST_BYTES = 24_000  # for one image
LEAST_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Thumb:
    """An image as a data URI, with its size on the page."""

    uri: str
    width: int
    height: int


def how_many(wanted: int) -> int:
    """Return how many of `wanted` images fit on a page."""
    return min(wanted, PAGE_BYTES // LEAST_BYTES)


def make_thumbs(files: Iterable[Path]) -> Mapping[Path, Thumb | None]:
    """Return a small copy of each image; None where the file is missing or broken."""
    paths = list(files)
    limit = min(MOST_BYTES, PAGE_BYTES // max(len(paths), 1))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow releases the interpreter's lock
        return dict(zip(paths, pool.map(lambda path: _thumb(path, limit), paths), strict=True))


def _thumb(path: Path, limit: int) -> Thumb | None:
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None  # the page says so; Pillow raises SyntaxError for a broken chunk
    for thumb in _versions(image, limit):
        if len(thumb.uri) <= limit:
            break
    return thumb  # the smallest, where none fits


def _versions(image: Image.Image, limit: int) -> Iterator[Thumb]:
    longest = max(image.size)
    likely = [step for step in _SIZES if step[0] ** 2 * _TYPICAL <= limit] or [_SIZES[-1]]
    for side, quality in likely:
        small = image.copy()
        small.thumbnail((min(side, longest), min(side, longest)), Image.Resampling.LANCZOS)
        data = io.BytesIO()
        small.save(data, "WEBP", quality=quality, method=0)
        yield Thumb(
            "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode("ascii"),
            *small.size,
        )


@dataclass(frozen=True, slots=True)
class Shot:
    """One image of a strip, or why there is none."""

    run: int
    thumb: Thumb | None
    caption: str
    same_as_ar: bool
    problem: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The images of one prompt and seed, one per run."""

    index: int
    prompt: str
    tags: str
    shots: tuple[Shot, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed image, and a hint."""

    run: int
    index: int
    prompt: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class ReportPage:
    """Everything on the page."""

    title: str
    subtitle: str
    names: tuple[str, ...]
    unfair: tuple[str, ...]
    cards: tuple[KeyFigure, ...]
    results: tuple[DecoderResult, ...]
    speedups: tuple[Chart, ...]
    distributions: tuple[Chart, ...]
    acceptance: Chart | None
    strips: tuple[Strip, ...]
    not_shown: int
    categories: tuple[Categories, ...]
    failures: tuple[Failure, ...]
    settings: tuple[Setting, ...]
    hardware: tuple[Setting, ...]
    version: str


def make_page(runs: Sequence[Run], results: Sequence[DecoderResult], version: str) -> ReportPage:
    """Gather what the page of `runs` shows, with their table; reads the images."""
    keys = sorted({key for run in runs for key in run.rows})
    shown = keys[: how_many(len(keys) * len(runs)) // len(runs)]
    return ReportPage(
        title=_title(runs),
        subtitle=_subtitle(runs),
        names=tuple(run.name for run in runs),
        unfair=tuple(unfair(runs)),
        cards=tuple(make_cards(runs, results)),
        results=tuple(results),
        speedups=tuple(speedup_charts(results)),
        distributions=tuple(distribution_charts(runs)),
        acceptance=acceptance_chart(runs),
        strips=tuple(_strips(runs, shown)),
        not_shown=len(keys) - len(shown),
        categories=tuple(categories(runs)),
        failures=tuple(_failures(runs)),
        settings=tuple(settings(runs)),
        hardware=tuple(hardware(runs)),
        version=version,
    )


def _title(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return f"{_model(runs[0])}, decoder {runs[0].name}"
    return f"{len(runs)} decoders on {_model(runs[0])}" if not unfair(runs) else f"{len(runs)} runs"


def _model(run: Run) -> str:
    named = next((str(row["model"]) for row in run.ok.values() if row.get("model")), None)
    return Path(named or str(run.info.pixel_settings["model"]["backbone"])).name


def _subtitle(runs: Sequence[Run]) -> str:
    prompts = {index for run in runs for index, _ in run.rows}
    days = sorted({str(row["started_at"])[:10] for run in runs for row in run.rows.values()})
    parts = [
        counted(len(prompts), "prompt"),
        counted(sum(len(run.ok) for run in runs), "image"),
        f"seed {runs[0].info.seed}",
    ]
    parts += [" to ".join(dict.fromkeys([days[0], days[-1]]))] if days else []
    return " · ".join(parts)


def _strips(runs: Sequence[Run], keys: Sequence[tuple[int, int]]) -> Iterator[Strip]:
    rows = {
        (i, key): run.rows[key] for i, run in enumerate(runs) for key in keys if key in run.rows
    }
    files = {
        at: runs[at[0]].root / row["file"]
        for at, row in rows.items()
        if row["status"] == "ok" and row.get("file")
    }
    thumbs = make_thumbs(files.values())
    ar = next((i for i, run in enumerate(runs) if run.decoder == "ar"), None)
    for key in keys:
        found = {i: row for i in range(len(runs)) if (row := rows.get((i, key))) is not None}
        first = next(iter(found.values()))
        tokens = _tokens(found.get(ar)) if ar is not None else None
        shots = []
        for i, row in found.items():
            thumb = thumbs[files[i, key]] if (i, key) in files else None
            same = i != ar and tokens is not None and _tokens(row) == tokens
            shots.append(Shot(i, thumb, _caption(row), same, "" if thumb else _problem(row)))
        extra = next((run.extras[key[0]] for run in runs if key[0] in run.extras), {})
        yield Strip(key[0], str(first["prompt"]), _tags(first, extra, key[1]), tuple(shots))


def _tokens(row: JsonRow | None) -> str | None:
    return row.get("token_sha256") if row else None


def _caption(row: JsonRow) -> str:
    nfe, latency = number(row, "nfe"), number(row, "latency_s")
    parts = [f"NFE {nfe:.0f}"] if nfe else []
    return " · ".join(parts + ([seconds(latency)] if latency else []))


def _problem(row: JsonRow) -> str:
    if row["status"] == "tokens":
        return "tokens only"
    if row["status"] == "ok":
        return "the image file is missing or broken"
    return str((row["error"] or {}).get("message", "failed"))


def _tags(row: JsonRow, extra: Mapping[str, Any], sample: int) -> str:
    words = [str(row["id"])] if row.get("id") else []
    words += [
        str(value) for value in extra.values() if isinstance(value, str) and 0 < len(value) <= 40
    ]
    return " · ".join(words + ([f"image {sample + 1} of this prompt"] if sample else []))


def _failures(runs: Sequence[Run]) -> Iterator[Failure]:
    for i, run in enumerate(runs):
        for row in run.failed:
            error = row["error"] or {}
            message = f"{error.get('type', 'failed')}: {error.get('message', 'no message')}"
            hint = str(error.get("hint") or "")
            yield Failure(i, row["index"], str(row["prompt"]), message, hint)
