"""The codebook: 4,087 patches that are the same on any background, and 9 background colours.

A patch is 8x8 premultiplied RGBA. Distances are those seen over black and over white, averaged,
so a boundary patch has one nearest token whatever lies behind it. Knows nothing about captions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.emoji.data import OBJECT_SIDE, Floats

PATCH = 8
N_PATCH_TOKENS = 4087
N_NEAR = 6
TEXTURE_NATS = 0.5
OBJECT_PATCHES = OBJECT_SIDE // PATCH
TOP_MARGIN, MARGIN = 1, 2
"""Patches of background between an object and the border, at the top and at the other sides. An
object that begins one row or column too late is then still whole."""
CLEAR = -1
"""Marks an empty patch; an image has the token of its background there."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TokenTable:
    """The nearest tokens of every concept's patches.

    ``near_CPPK`` are tokens or CLEAR; ``chance_CPPK`` how often each is sampled in training.
    """

    near_CPPK: Ints
    chance_CPPK: Floats
    centres_KD: Floats

    def save(self, path: Path) -> None:
        """Keep the table in one file."""
        np.savez_compressed(
            path,
            near=self.near_CPPK.astype(np.int16),
            chance=self.chance_CPPK,
            centres=self.centres_KD,
        )

    @classmethod
    def load(cls, path: Path) -> TokenTable:
        """Read what ``save`` wrote."""
        with np.load(path) as kept:
            return cls(kept["near"].astype(np.int64), kept["chance"], kept["centres"])


def background_token(colour: int) -> int:
    """Return the token of a patch of pure background."""
    return N_PATCH_TOKENS + colour


def to_patches(images: Floats) -> Floats:
    """Cut [..., H, W, 4] into [..., H/8, W/8, 256]."""
    *lead, height, width, channels = images.shape
    cut = images.reshape(*lead, height // PATCH, PATCH, width // PATCH, PATCH, channels)
    moved = np.moveaxis(cut, -4, -3)
    return np.ascontiguousarray(moved).reshape(*lead, height // PATCH, width // PATCH, -1)


def to_features(patches: Floats) -> Floats:
    """Return features [..., 384]: their squared distance is the mean over black and white."""
    pixels = patches.reshape(*patches.shape[:-1], PATCH * PATCH, 4)
    on_black = pixels[..., :3]
    on_white = on_black + (1 - pixels[..., 3:])
    both = np.concatenate([on_black, on_white], axis=-1) / np.sqrt(2)
    return both.reshape(*patches.shape[:-1], -1).astype(np.float32)


def k_means(points_ND: Floats, weight_N: Floats, k: int, seed: int = 0, rounds: int = 20) -> Floats:
    """Run weighted Lloyd iterations; a centre that loses all points takes a far one."""
    rng = np.random.default_rng(seed)
    points, weight = torch.from_numpy(points_ND), torch.from_numpy(weight_N)
    start = rng.choice(len(points_ND), k, replace=False, p=weight_N / weight_N.sum())
    centres = points[start].clone()
    for _ in range(rounds):
        distance, owner = nearest(points, centres, 1)
        total = torch.zeros(k).index_add_(0, owner[:, 0], weight)
        summed = torch.zeros_like(centres).index_add_(0, owner[:, 0], points * weight[:, None])
        lost = total == 0
        centres = torch.where(lost[:, None], centres, summed / total.clamp_min(1e-12)[:, None])
        if lost.any():
            far = (distance[:, 0] * weight).topk(int(lost.sum())).indices
            centres[lost] = points[far]
    return centres.numpy()


def nearest(
    points: torch.Tensor, centres: torch.Tensor, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared distances and indices of the ``n`` nearest centres, nearest first, in chunks."""
    square_K = centres.square().sum(1)
    found = []
    for chunk in points.split(8192):
        distance = chunk.square().sum(1, keepdim=True) + square_K - 2 * chunk @ centres.T
        found.append(distance.clamp_min(0).topk(n, dim=1, largest=False))
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


def build_table(
    images_NHWC: Floats, n_image_tokens: int = N_PATCH_TOKENS, seed: int = 0
) -> TokenTable:
    """Learn the codebook on all patches that are not empty; list the nearest tokens of each."""
    patches = to_patches(images_NHWC)
    filled = patches.reshape(*patches.shape[:-1], -1, 4)[..., 3].max(-1) > 1 / 255
    points = to_features(patches[filled])
    weight = np.sqrt(points.var(axis=1) + 1e-4).astype(np.float32)
    centres = k_means(points, weight, n_image_tokens, seed)
    distance, index = nearest(torch.from_numpy(points), torch.from_numpy(centres), N_NEAR)
    near = np.full((*filled.shape, N_NEAR), CLEAR, np.int64)
    near[filled] = index.numpy()
    chance = np.zeros(near.shape, np.float32)
    chance[..., 0] = 1
    chance[filled] = _texture(distance.numpy())
    return TokenTable(near, chance, centres)


def _texture(distance_NK: Floats, nats: float = TEXTURE_NATS) -> Floats:
    """Return chances that fall with distance, with ``nats`` of entropy a patch on average."""
    low, high = 1e-6, 1e3
    for _ in range(50):
        width = (low * high) ** 0.5
        score = -(distance_NK - distance_NK[:, :1]) / width
        chance = np.exp(score) / np.exp(score).sum(1, keepdims=True)
        entropy = -(chance * np.log(chance + 1e-12)).sum(1).mean()
        low, high = (width, high) if entropy < nats else (low, width)
    return chance.astype(np.float32)


def place(near_PP: Ints, top: int, left: int, colour: int, grid: int = 16) -> Ints:
    """One image's tokens [16, 16]: an object's patches at a whole-patch offset on a background.

    The offset may be negative if the object's outer patches are empty.
    """
    tokens = np.full((grid, grid), background_token(colour), np.int64)
    rows, columns = np.nonzero(near_PP != CLEAR)
    tokens[rows + top, columns + left] = near_PP[rows, columns]
    return tokens


def offsets(near_PP: Ints, grid: int = 16) -> tuple[range, range]:
    """Return the top rows and left columns that leave a margin of background around an object."""
    rows, columns = np.nonzero(near_PP != CLEAR)
    top = range(TOP_MARGIN - int(rows.min()), grid - MARGIN - int(rows.max()))
    left = range(MARGIN - int(columns.min()), grid - MARGIN - int(columns.max()))
    return top, left
