"""Image sizes (width, height) in pixels: the one of the settings, and those of a model."""

import math
from collections.abc import Iterable

from sjdvp.config import ModelConfig
from sjdvp.errors import ConfigError

Size = tuple[int, int]  # width, height


def requested(config: ModelConfig, default: Size) -> Size:
    """Return the size that the settings ask for. Raises ConfigError when only one side is given."""
    if (config.width is None) != (config.height is None):
        raise ConfigError("only one side of the image is given", "give --size WxH", "model.width")
    if config.width is None or config.height is None:
        return default
    return config.width, config.height


def require(size: Size, allowed: Iterable[Size], what: str) -> Size:
    """Return `size` if it is one of `allowed`; else raise ConfigError with the three nearest."""
    sizes = set(allowed)
    if size in sizes:
        return size
    nearest = sorted(sizes, key=lambda other: (_distance(size, other), other))[:3]
    listed = ", ".join(f"{width}x{height}" for width, height in nearest)
    only = "generates only" if len(sizes) == len(nearest) else "generates, as the nearest sizes,"
    raise ConfigError(
        f"no images of {size[0]}x{size[1]} pixels: {what} {only} {listed}",
        f"give --size {nearest[0][0]}x{nearest[0][1]}",
        "model.width",
    )


def _distance(one: Size, other: Size) -> float:
    return math.hypot(*(math.log(a / b) for a, b in zip(one, other, strict=True)))


def multiples(size: Size, unit: int) -> list[Size]:
    """Return the sizes around `size` whose sides are multiples of `unit`; `size` if it is one."""
    sides = [sorted({max(unit, side // unit * unit), -(-side // unit) * unit}) for side in size]
    return [(width, height) for width in sides[0] for height in sides[1]]


def frontier(side: int, unit: int, max_ratio: float = 4.0) -> list[Size]:
    """Return the sizes that a model trained for `side` x `side` pixels has seen.

    From a height of one unit on: height grows by one while the area stays within that of the
    square, else the width shrinks by one. Source: Lumina-mGPT, data/item_processor.py.
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
    """Return the size in multiples of `unit` with about `side` x `side` pixels and this ratio.

    Source: Emu3, processing_emu3.py.
    """
    width, height = size
    scale = math.sqrt(side * side / (width * height))
    return round(width * scale / unit) * unit, round(height * scale / unit) * unit
