"""Training batches: images as tokens with captions, some inputs corrupted, targets always clean.

Every batch is a function of (seed, step), so a resumed run sees what an unbroken one would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.emoji.captions import BOI, BOS, PAD, caption
from training.emoji.codebook import N_PATCH_TOKENS, Ints, TokenTable, place
from training.emoji.data import COLOURS, Floats

GRID = 16
N_IMAGE_TOKENS = 1024
N_POSITIONS = GRID * GRID
TEXT_LENGTH = 24
DROPPED = 0.1
WHITE_SHARE = 0.5
TOPS, LEFTS = (0, 2, 4), (0, 1, 2, 3, 4)
ALL_TOPS = (0, 1, 2, 3, 4)
"""The offsets of an object of 12x12 patches: 15 for most of the training, 25 in its last part."""


@dataclass(frozen=True)
class Batch:
    """Left-padded text, and the positions of each image that are trained on.

    Position j predicts image token j from token j - 1 (position 0 from the last word of the text).
    ``weight_BK`` makes up for the positions that are left out.
    """

    text_BT: Tensor
    pos_BK: Tensor
    input_BK: Tensor
    target_BK: Tensor
    weight_BK: Tensor

    def pieces(self, size: int) -> list[tuple[Tensor, ...]]:
        """Cut the batch into small ones."""
        every = (self.text_BT, self.pos_BK, self.input_BK, self.target_BK, self.weight_BK)
        return list(zip(*(t.split(size) for t in every), strict=True))


@dataclass(frozen=True)
class TrainingSource:
    """Everything that batches are made of."""

    names: list[str]
    table: TokenTable
    held_out: set[tuple[int, int]]
    tokenizer: Tokenizer
    seed: int = 0
    n_image_tokens: int = N_IMAGE_TOKENS

    def batch(
        self,
        step: int,
        size: int,
        corrupted_share: float,
        n_kept: int = N_POSITIONS,
        tops: tuple[int, ...] = TOPS,
    ) -> Batch:
        """Return the batch of one step."""
        rng = np.random.default_rng((self.seed, step))
        concept_B = [int(c) for c in rng.integers(len(self.names), size=size)]
        colour_B = [self.colour(c, rng) for c in concept_B]
        pairs = list(zip(concept_B, colour_B, strict=True))
        clean_BC = np.stack([self.image(c, k, rng, tops) for c, k in pairs]).reshape(size, -1)
        text = [self._text(c, k, rng) for c, k in pairs]
        fed_BC = np.roll(corrupt(clean_BC, corrupted_share, rng), 1, axis=1)
        kept = [keep(row, n_kept, rng) for row in clean_BC]
        pos_BK = np.stack([place for place, _ in kept])
        return Batch(
            torch.tensor(text),
            torch.from_numpy(pos_BK),
            torch.from_numpy(np.take_along_axis(fed_BC, pos_BK, 1)),
            torch.from_numpy(np.take_along_axis(clean_BC, pos_BK, 1)),
            torch.from_numpy(np.stack([weight for _, weight in kept])),
        )

    def image(
        self, concept: int, colour: int, rng: np.random.Generator, tops: tuple[int, ...] = ALL_TOPS
    ) -> Ints:
        """Return one image's tokens [16, 16], its object at a random offset."""
        top, left = spot(rng, tops)
        return self.tokens_at(concept, colour, top, left, rng)

    def tokens_at(
        self, concept: int, colour: int, top: int, left: int, rng: np.random.Generator
    ) -> Ints:
        """Return tokens [16, 16] with the object at a given offset and random texture."""
        near, chance = self.table.near_CPPK[concept], self.table.chance_CPPK[concept]
        pick = (rng.random((*near.shape[:2], 1)) > chance.cumsum(-1)).sum(-1, keepdims=True)
        tokens = np.take_along_axis(near, np.minimum(pick, near.shape[-1] - 1), -1)[..., 0]
        return place(tokens, top, left, colour)

    def colour(self, concept: int, rng: np.random.Generator) -> int:
        """White half of the time, never a held-out pair."""
        while True:
            colour = 0 if rng.random() < WHITE_SHARE else int(rng.integers(1, len(COLOURS)))
            if (concept, colour) not in self.held_out:
                return colour
            if colour == 0:
                return self._coloured(concept, rng)

    def _coloured(self, concept: int, rng: np.random.Generator) -> int:
        """Any allowed colour but white, for a concept whose white is held out."""
        allowed = [k for k in range(1, len(COLOURS)) if (concept, k) not in self.held_out]
        return allowed[int(rng.integers(len(allowed)))]

    def _text(self, concept: int, colour: int, rng: np.random.Generator) -> list[int]:
        """Return a caption's ids between special tokens, left-padded; a tenth have no caption."""
        words = self.tokenizer.encode(caption(self.names[concept], COLOURS[colour], rng)).ids
        if rng.random() < DROPPED:
            words = []
        ids = [BOS, *words[: TEXT_LENGTH - 2], BOI]
        return [PAD] * (TEXT_LENGTH - len(ids)) + ids


def spot(rng: np.random.Generator, tops: tuple[int, ...] = ALL_TOPS) -> tuple[int, int]:
    """Return a random offset of an object: its top row and left column."""
    return int(rng.choice(tops)), int(rng.choice(LEFTS))


def corrupt(clean_BC: Ints, share: float, rng: np.random.Generator) -> Ints:
    """Replace 0-50 % of the tokens of a share of images: four fifths from another image."""
    size, length = clean_BC.shape
    rate_B1 = rng.uniform(0, 0.5, (size, 1)) * (rng.random((size, 1)) < share)
    other = np.roll(clean_BC, 1, axis=0)
    noise = rng.integers(N_IMAGE_TOKENS, size=clean_BC.shape)
    wrong = np.where(rng.random((size, length)) < 0.8, other, noise)
    return np.where(rng.random((size, length)) < rate_B1, wrong, clean_BC)


def keep(clean_C: Ints, n_kept: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Choose positions to train on: all that touch the object, and some of the flat background.

    Position 0 is always kept. Kept background positions weigh more, for those left out.
    """
    object_ = clean_C < N_PATCH_TOKENS
    touches = object_ | np.roll(object_, 1)
    touches[0] = True
    needed, others = np.flatnonzero(touches), np.flatnonzero(~touches)
    if len(needed) >= n_kept:
        chosen = np.concatenate([needed[:1], rng.choice(needed[1:], n_kept - 1, replace=False)])
        return np.sort(chosen), np.full(n_kept, len(needed) / n_kept, np.float32)
    n_others = n_kept - len(needed)
    chosen = np.concatenate([needed, rng.choice(others, n_others, replace=False)])
    weight = np.concatenate(
        [np.ones(len(needed)), np.full(n_others, len(others) / n_others)]
    ).astype(np.float32)
    order = np.argsort(chosen)
    return chosen[order], weight[order]
