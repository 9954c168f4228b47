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
from training.emoji.codebook import N_PATCH_TOKENS, Ints, TokenTable, offsets, place
from training.emoji.data import COLOURS, Floats

GRID = 16
N_IMAGE_TOKENS = 4096
N_POSITIONS = GRID * GRID
TEXT_LENGTH = 24
DROPPED = 0.1
WHITE_SHARE = 0.5


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

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors in the order of the loss's arguments."""
        return self.text_BT, self.pos_BK, self.input_BK, self.target_BK, self.weight_BK


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
        self, step: int, size: int, corrupted_share: float, n_kept: int = N_POSITIONS
    ) -> Batch:
        """Return the batch of one step."""
        rng = np.random.default_rng((self.seed, step))
        concept_B = [int(c) for c in rng.integers(len(self.names), size=size)]
        colour_B = [self.colour(c, rng) for c in concept_B]
        offset_B = [self.offset(c, rng) for c in concept_B]
        samples = list(zip(concept_B, colour_B, offset_B, strict=True))
        clean_BC = np.stack([self.tokens_at(*s, rng) for s in samples]).reshape(size, -1)
        text = [self._text(*s, rng) for s in samples]
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

    def offset(self, concept: int, rng: np.random.Generator) -> tuple[int, int]:
        """Return a random offset of an object: its top row and left column."""
        tops, lefts = self.offsets(concept)
        return int(rng.choice(tops)), int(rng.choice(lefts))

    def offsets(self, concept: int) -> tuple[range, range]:
        """Return every top row and left column of an object."""
        return offsets(self.table.near_CPPK[concept, ..., 0])

    def tokens_at(
        self, concept: int, colour: int, offset: tuple[int, int], rng: np.random.Generator
    ) -> Ints:
        """Return tokens [16, 16] with the object at a given offset and random texture."""
        near, chance = self.table.near_CPPK[concept], self.table.chance_CPPK[concept]
        pick = (rng.random((*near.shape[:2], 1)) > chance.cumsum(-1)).sum(-1, keepdims=True)
        tokens = np.take_along_axis(near, np.minimum(pick, near.shape[-1] - 1), -1)[..., 0]
        return place(tokens, *offset, colour)

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

    def _text(
        self, concept: int, colour: int, offset: tuple[int, int], rng: np.random.Generator
    ) -> list[int]:
        """Return a caption's ids between special tokens, left-padded; a tenth have no caption."""
        positions = position_phrases(offset, self.offsets(concept))
        text = caption(self.names[concept], COLOURS[colour], positions, rng)
        words = self.tokenizer.encode(text).ids
        if rng.random() < DROPPED:
            words = []
        ids = [BOS, *words[: TEXT_LENGTH - 2], BOI]
        return [PAD] * (TEXT_LENGTH - len(ids)) + ids


def position_phrases(offset: tuple[int, int], allowed: tuple[range, range]) -> list[str]:
    """Return every phrase that says truly where an object is."""
    phrases = []
    words = (("at the top", "at the bottom"), ("on the left", "on the right"))
    for at, steps, (low, high) in zip(offset, allowed, words, strict=True):
        share = (at - steps[0]) / (len(steps) - 1)
        phrases += [low] if share <= 0.25 else [high] if share >= 0.75 else []
    return phrases or ["in the middle"]


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
