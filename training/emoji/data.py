"""The training images: Noto emoji with emojibase names, rendered to one size.

Knows nothing about tokens or captions. Images are premultiplied RGBA in [0, 1].
"""

from __future__ import annotations

import io
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

IMAGE_SIDE = 128
OBJECT_SIDE = 80
RENDERED_SIDE = 256
PACKAGES = ("@iconify-json/noto@1.2.9", "emojibase-data@17.0.0")
CONCEPTS_FILE = Path(__file__).with_name("concepts.txt")

PALETTE: dict[str, tuple[int, int, int]] = {
    "white": (255, 255, 255),
    "red": (214, 48, 49),
    "orange": (240, 140, 40),
    "yellow": (250, 218, 80),
    "green": (70, 170, 90),
    "blue": (64, 120, 220),
    "purple": (140, 85, 190),
    "pink": (248, 165, 194),
    "black": (24, 24, 28),
}
COLOURS = tuple(PALETTE)

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Concept:
    """One object the model knows: its name in captions and its emojibase label."""

    name: str
    label: str


def read_concepts(path: Path = CONCEPTS_FILE) -> list[Concept]:
    """Read ``label = name`` lines in their fixed order."""
    rows = (line.partition(" = ") for line in path.read_text("utf-8").splitlines() if line)
    return [Concept(name=name, label=label) for label, _, name in rows]


def fetch(cache: Path) -> None:
    """Bring both npm packages into ``cache`` unless they are there already."""
    if (cache / "node_modules").is_dir():
        return
    cache.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--silent", "--ignore-scripts", "--prefix", str(cache)]
    subprocess.run([*command, *PACKAGES], check=True)


def load_images(cache: Path, concepts: list[Concept]) -> Floats:
    """Every concept's image, [N, 80, 80, 4] premultiplied RGBA; rendered only once."""
    kept = cache / f"images{OBJECT_SIDE}.npy"
    if not kept.exists():
        np.save(kept, np.stack([fit(render(svg)) for svg in svg_bodies(cache, concepts)]))
    images: Floats = np.load(kept)
    return images


def svg_bodies(cache: Path, concepts: list[Concept]) -> list[str]:
    """Return each concept's SVG without its outermost element."""
    noto = cache / "node_modules/@iconify-json/noto"
    icons = json.loads((noto / "icons.json").read_text("utf-8"))["icons"]
    names = {
        _bare(hexcode): name
        for hexcode, name in json.loads((noto / "chars.json").read_text("utf-8")).items()
    }
    emojibase = cache / "node_modules/emojibase-data/en/data.json"
    hexcodes = {row["label"]: row["hexcode"] for row in json.loads(emojibase.read_text("utf-8"))}
    return [icons[names[_bare(hexcodes[c.label])]]["body"] for c in concepts]


def render(body: str, side: int = RENDERED_SIDE) -> Image.Image:
    """Render the body of an SVG of 128x128 units; needs the package resvg_py."""
    import resvg_py

    space = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    svg = f'<svg {space} viewBox="0 0 128 128" width="{side}" height="{side}">{body}</svg>'
    png = resvg_py.svg_to_bytes(svg_string=svg, skip_system_fonts=True)
    return Image.open(io.BytesIO(bytes(png)))


def _bare(hexcode: str) -> str:
    """Return the code points without the variation selector, on which the two packages differ."""
    return hexcode.lower().replace("-fe0f", "")


def fit(image: Image.Image, side: int = OBJECT_SIDE) -> Floats:
    """Crop to the visible part and scale its longer side to ``side``, centred, background empty."""
    rgba = image.convert("RGBA")
    box = rgba.getchannel("A").point(lambda a: 255 if a > 8 else 0).getbbox()
    visible = rgba.crop(box).convert("RGBa")
    scale = side / max(visible.size)
    width, height = (max(1, round(length * scale)) for length in visible.size)
    small = np.asarray(visible.resize((width, height), Image.Resampling.LANCZOS), np.float32) / 255
    canvas = np.zeros((side, side, 4), np.float32)
    top, left = (side - height) // 2, (side - width) // 2
    canvas[top : top + height, left : left + width] = small
    canvas[..., :3] = np.minimum(canvas[..., :3], canvas[..., 3:])
    return canvas
