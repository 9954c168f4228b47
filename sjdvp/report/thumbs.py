"""Small copies of images for a page: WebP inside the HTML, each within a limit of bytes."""

import base64
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

# Longest side and quality, best first: the first that fits the limit is taken.
_STEPS = (
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
MOST = 24_000  # for one image
LEAST = 2_000


@dataclass(frozen=True, slots=True)
class Thumb:
    """An image as a data URI, with its size on the page."""

    uri: str
    width: int
    height: int


def how_many(wanted: int) -> int:
    """Return how many of `wanted` images fit on a page."""
    return min(wanted, PAGE_BYTES // LEAST)


def make_thumbs(files: Iterable[Path]) -> Mapping[Path, Thumb | None]:
    """Return a small copy of each image; None where the file is missing or broken."""
    paths = list(files)
    limit = min(MOST, PAGE_BYTES // max(len(paths), 1))
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
    likely = [step for step in _STEPS if step[0] ** 2 * _TYPICAL <= limit] or [_STEPS[-1]]
    for side, quality in likely:
        small = image.copy()
        small.thumbnail((min(side, longest), min(side, longest)), Image.Resampling.LANCZOS)
        data = io.BytesIO()
        small.save(data, "WEBP", quality=quality, method=0)
        yield Thumb(
            "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode("ascii"),
            *small.size,
        )
