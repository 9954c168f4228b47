"""The training images: Noto emoji art with emojibase names, cut to one size.

Knows nothing about tokens or captions. Images are premultiplied RGBA in [0, 1].
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

IMAGE_SIDE = 64
OBJECT_SIDE = 48
PACKAGES = {"google": "emoji-datasource-google@16.0.0", "emojibase": "emojibase-data@17.0.0"}
WANTED = ("package/img/google/64/", "package/emoji.json", "package/en/data.json", "package/LICENSE")
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
    cache.mkdir(parents=True, exist_ok=True)
    for folder, package in PACKAGES.items():
        if (cache / folder).is_dir():
            continue
        done = subprocess.run(
            ["npm", "pack", "--silent", package],
            cwd=cache,
            check=True,
            capture_output=True,
            text=True,
        )
        archive = cache / done.stdout.split()[-1]
        _unpack(archive, cache / folder)
        archive.unlink()


def _unpack(archive: Path, target: Path) -> None:
    """Keep only the members the recipe reads; the folder appears when it is complete."""
    partial = target.with_name(target.name + ".tmp")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if m.name.startswith(WANTED)]
        tar.extractall(partial, members=members, filter="data")
    (partial / "package").rename(target)
    shutil.rmtree(partial)


def load_images(cache: Path, concepts: list[Concept]) -> Floats:
    """Every concept's image, [N, 48, 48, 4] premultiplied RGBA."""
    labels = {
        row["label"]: row["hexcode"]
        for row in json.loads((cache / "emojibase/en/data.json").read_text("utf-8"))
    }
    files = {
        _bare(row["unified"]): row["image"]
        for row in json.loads((cache / "google/emoji.json").read_text("utf-8"))
    }
    folder = cache / "google/img/google/64"
    return np.stack([fit(Image.open(folder / files[_bare(labels[c.label])])) for c in concepts])


def _bare(hexcode: str) -> str:
    """Return the code points without the variation selector, on which the two packages differ."""
    return hexcode.replace("-FE0F", "")


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
