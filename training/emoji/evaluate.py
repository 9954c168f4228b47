"""Scores of a finished run of the 200 fixed prompts, two images each, with any decoder.

Background: the median colour of the outermost patches is nearest to the one asked for. Concept: of
all concepts at all offsets on that background, the nearest in pixels is the one asked for. Cut: an
object, or a piece of one, reaches the border of the image.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from sjdvp.runs.log import finished, read_log
from training.emoji.batches import GRID
from training.emoji.codebook import OBJECT_PATCHES, PATCH
from training.emoji.data import COLOURS, PALETTE, Floats
from training.emoji.prompts import PROMPTS_FILE, Ask

SEED = 0
N_SEEDS = 2
FAR = 48.0
"""A background further than this from every named colour (Euclidean, of 255) is none of them."""
VISIBLE_LEVELS, VISIBLE_SHARE = 32, 0.05
"""Two images differ visibly when this share of pixels differs by more than this many levels."""
BORDER, VISIBLE_PIXELS = 4, 6
"""A piece of at least this many pixels that reaches the outermost pixels makes an image cut."""


@dataclass(frozen=True)
class Scores:
    """The scores of the model card; shares of images, ``differ`` of prompts."""

    background: float
    concept_trained: float
    concept_held_out: float
    differ: float
    cut: float
    n_images: int

    def passed(self) -> bool:
        """Return whether every score reaches its target."""
        return (
            self.background >= 0.98
            and self.concept_trained >= 0.95
            and self.concept_held_out >= 0.90
            and self.differ >= 0.90
            and self.cut <= 0.01
        )


def sample(out: Path, model: Path | None = None, extra: tuple[str, ...] = ()) -> None:
    """Generate the fixed prompts by the command line with the default sampler; resumes."""
    command = [
        sys.executable,
        "-m",
        "sjdvp_cli",
        "generate",
        "--profile",
        "emoji",
        "--prompts",
        str(PROMPTS_FILE),
    ]
    command += ["--out", str(out), "--seed", str(SEED), "-n", str(N_SEEDS), *extra]
    if model is not None:
        command += ["--model", str(model)]
    subprocess.run(command, check=True)


def load_run(folder: Path, asks: list[Ask]) -> NDArray[np.uint8]:
    """All images of a finished run, [prompts, seeds, 128, 128, 3]."""
    entries = read_log(folder)
    missing = {(i, s) for i in range(len(asks)) for s in range(N_SEEDS)} - finished(folder, entries)
    if missing:
        raise ValueError(
            f"{folder}: {len(missing)} images are missing, the first is {min(missing)}"
        )
    rows = [
        [
            np.asarray(Image.open(folder / str(entries[i, s].file)).convert("RGB"))
            for s in range(N_SEEDS)
        ]
        for i in range(len(asks))
    ]
    return np.array(rows, np.uint8)


def backgrounds(images_N: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the index of each image's background colour, or -1."""
    frame = np.ones(images_N.shape[1:3], bool)
    frame[PATCH:-PATCH, PATCH:-PATCH] = False
    middle = np.median(images_N[:, frame].astype(np.float32), axis=1)
    distance = np.linalg.norm(
        middle[:, None] - np.array(list(PALETTE.values()), np.float32), axis=-1
    )
    return np.where(distance.min(1) <= FAR, distance.argmin(1), -1)


def nearest_concepts(
    images_N: NDArray[np.uint8], colour: int, concepts: Floats
) -> NDArray[np.int64]:
    """Return the concept that is nearest to each image, at its best offset on this background.

    Measured at half size. Outside the object is background, so only its window is compared.
    """
    back = np.asarray(PALETTE[COLOURS[colour]], np.float32) / 255
    got = _halved(images_N.astype(np.float32) / np.float32(255)) - back
    objects = _halved(concepts)
    want_CD = (objects[..., :3] - objects[..., 3:] * back).reshape(len(objects), -1)
    side, step = objects.shape[1], PATCH // 2
    # Empty outer patches of an object may lie outside: every offset with its middle inside counts.
    beyond = OBJECT_PATCHES // 2 - 1
    margin = (beyond * step, beyond * step)
    got = np.pad(got, ((0, 0), margin, margin, (0, 0)))
    offsets = range(0, step * (GRID + 2 * beyond - OBJECT_PATCHES + 1), step)
    distance_NC = np.full((len(got), len(objects)), np.inf, np.float32)
    for y, x in itertools.product(offsets, offsets):
        window_ND = got[:, y : y + side, x : x + side].reshape(len(got), -1)
        at_offset_NC = np.square(want_CD).sum(1) - 2 * window_ND @ want_CD.T
        distance_NC = np.minimum(distance_NC, at_offset_NC)
    return distance_NC.argmin(1)


def _halved(images: Floats) -> Floats:
    """Halve the side of [N, H, W, channels]."""
    n, side, _, channels = images.shape
    halved: Floats = images.reshape(n, side // 2, 2, side // 2, 2, channels).mean(
        (2, 4), dtype=np.float32
    )
    return halved


def differ(one_N: NDArray[np.uint8], other_N: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether two images of one prompt differ visibly."""
    apart = np.abs(one_N.astype(np.int16) - other_N.astype(np.int16)).max(-1) > VISIBLE_LEVELS
    return apart.mean((1, 2)) >= VISIBLE_SHARE


def cut(images_N: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether an object or a piece of one reaches the border of each image.

    In training images at least one patch of background surrounds every object.
    """
    frame = np.ones(images_N.shape[1:3], bool)
    frame[BORDER:-BORDER, BORDER:-BORDER] = False
    found = []
    for image in images_N.astype(np.float32):
        background = np.median(image[frame], axis=0)
        labels, _ = ndimage.label(np.linalg.norm(image - background, axis=-1) > FAR)
        at_border = np.unique(labels[frame])
        sizes = np.bincount(labels.ravel())[at_border[at_border > 0]]
        found.append(bool((sizes >= VISIBLE_PIXELS).any()))
    return np.array(found)


def score(
    images_PS: NDArray[np.uint8], asks: list[Ask], concepts: Floats
) -> tuple[Scores, list[dict[str, Any]]]:
    """Return the scores, and for each image what was asked and what was found."""
    flat = images_PS.reshape(-1, *images_PS.shape[2:])
    asked = [ask for ask in asks for _ in range(images_PS.shape[1])]
    seen = backgrounds(flat)
    # An image on a wrong background is compared on the background it has: one fault counts once.
    ground = np.where(seen >= 0, seen, [ask.colour for ask in asked])
    reaches_border = cut(flat)
    thing = np.zeros(len(flat), np.int64)
    for colour in np.unique(ground):
        thing[ground == colour] = nearest_concepts(flat[ground == colour], int(colour), concepts)
    rows = [
        {
            "prompt": a.text,
            "held_out": a.held_out,
            "background": bool(b == a.colour),
            "concept": bool(t == a.concept),
            "nearest": int(t),
            "cut": bool(c),
        }
        for a, b, t, c in zip(asked, seen, thing, reaches_border, strict=True)
    ]
    return (
        Scores(
            background=_share([r["background"] for r in rows]),
            concept_trained=_share([r["concept"] for r in rows if not r["held_out"]]),
            concept_held_out=_share([r["concept"] for r in rows if r["held_out"]]),
            differ=_share(differ(images_PS[:, 0], images_PS[:, 1]).tolist()),
            cut=_share([r["cut"] for r in rows]),
            n_images=len(rows),
        ),
        rows,
    )


def _share(hits: list[Any]) -> float:
    """Return the share of hits, to four places."""
    return round(sum(hits) / len(hits), 4)


def report(scores: Scores, rows: list[dict[str, Any]], names: list[str]) -> str:
    """Write the misses and one JSON line, for a terminal."""
    lines = [
        f"missed: {r['prompt']}: background {'right' if r['background'] else 'wrong'}, "
        f"nearest is {names[r['nearest']]}{', cut' if r['cut'] else ''}"
        for r in rows
        if not (r["background"] and r["concept"]) or r["cut"]
    ]
    return "\n".join([*lines, json.dumps(asdict(scores) | {"passed": scores.passed()})])


def sheet(images_P: NDArray[np.uint8], columns: int = 16, zoom: int = 1) -> Image.Image:
    """Return images as a grid, in order."""
    n, side = len(images_P), images_P.shape[1]
    canvas = np.full((-(-n // columns) * side, columns * side, 3), 255, np.uint8)
    for i, image in enumerate(images_P):
        top, left = i // columns * side, i % columns * side
        canvas[top : top + side, left : left + side] = image
    image = Image.fromarray(canvas)
    return (
        image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)
        if zoom > 1
        else image
    )
