"""Which image sizes a model draws, in pixels (width, height), and the refusal of others with the nearest that it does."""

import math
from collections.abc import Iterable

from sjdvp.config import ModelConfig
from sjdvp.errors import ConfigError

Size = tuple[int, int]  # width, height


def requested(config: ModelConfig, default: Size) -> Size:
    """Return the size that a configuration asks for. Raises ConfigError when only one side is given."""
    if (config.width is None) != (config.height is None):
        raise ConfigError(
            "one side of the image is given and not the other", "give --size WxH", "model.width"
        )
    if config.width is None or config.height is None:
        return default
    return config.width, config.height


def require(size: Size, allowed: Iterable[Size], what: str) -> Size:
    """Return `size` if it is one of `allowed`; else raise ConfigError with the three nearest."""
    sizes = set(allowed)
    if size in sizes:
        return size
    nearest = sorted(sizes, key=lambda other: (_distance(size, other), other))[:3]
    listed = " or ".join(f"{width}x{height}" for width, height in nearest)
    raise ConfigError(
        f"{what} does not draw {size[0]}x{size[1]} images",
        f"the nearest sizes are {listed}",
        "model.width",
    )


def _distance(one: Size, other: Size) -> float:
    return math.hypot(*(math.log(a / b) for a, b in zip(one, other, strict=True)))


def multiples(size: Size, unit: int) -> list[Size]:
    """Return the sizes around `size` whose sides are multiples of `unit`, and `size` itself if it is one."""
    sides = [sorted({max(unit, side // unit * unit), -(-side // unit) * unit}) for side in size]
    return [(width, height) for width in sides[0] for height in sides[1]]


def frontier(side: int, unit: int, max_ratio: float = 4.0) -> list[Size]:
    """Return the sizes a model trained for `side` x `side` pixels has seen: staircase of the largest within that area.

    In units, from one row upwards: a row is added while the area allows it, else a column is taken away (Lumina-mGPT,
    data/item_processor.py).
    """
    area = (side // unit) ** 2
    sizes, width, height = [], area, 1
    while width > 0:
        if max(width, height) <= max_ratio * min(width, height):
            sizes.append((width * unit, height * unit))
        if (height + 1) * width <= area:
            height += 1
        else:
            width -= 1
    return sizes


def same_area(size: Size, side: int, unit: int) -> Size:
    """Return the size with the proportions of `size` and about `side` x `side` pixels, in units (Emu3, processing_emu3.py)."""
    width, height = size
    scale = math.sqrt(side * side / (width * height))
    return round(width * scale / unit) * unit, round(height * scale / unit) * unit
