"""Training of the VQ decoder, a small VQGAN of the taming family.

It sees the images of the transformer: textured tokens in, the clean image out. Flat background has
a larger weight, because group normalisation spreads the object over it.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sjdvp.models.vq import TamingDecoder
from training.emoji import checkpoint
from training.emoji.batches import GRID, TrainingSource
from training.emoji.codebook import N_PATCH_TOKENS, PATCH
from training.emoji.data import COLOURS, IMAGE_SIDE, PALETTE, Floats
from training.emoji.muon import Muon


@dataclass(frozen=True)
class PixelPlan:
    """Budget and hyperparameters of the VQ decoder's training."""

    budget_s: float = 1800.0
    batch: int = 4
    muon_lr: float = 0.01
    adam_lr: float = 3e-3
    warmup_steps: int = 20
    flat_weight: float = 2.0
    edge_weight: float = 0.5
    average: float = 0.995
    save_every_s: float = 60.0


@torch.no_grad()
def prepare(pixels: TamingDecoder, centres_KD: Floats) -> None:
    """Start from weights that keep the signal's size, and from the patches' principal axes."""
    for name, module in pixels.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
            if name.endswith(("conv2", "proj_out", "decoder.conv_out")):
                module.weight.mul_(0.3)
    size = pixels.quantize.embedding.embedding_dim
    backs = [np.tile(np.asarray(rgb, np.float32) / 255, 2) for rgb in PALETTE.values()]
    flat = np.stack([np.tile(back, PATCH * PATCH) for back in backs]) / np.sqrt(2)
    points = torch.from_numpy(np.concatenate([centres_KD, flat]))
    points = points - points.mean(0)
    axes = torch.linalg.svd(points, full_matrices=False).Vh[: size - 1]
    spread = points @ axes.T
    spread = spread / spread.std(0) ** 0.5
    pixels.quantize.embedding.weight.copy_(
        torch.cat([spread, spread.std().expand(len(spread), 1)], dim=1)
    )


def to_bytes(image_BCHW: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Images as [B, 128, 128, 3] bytes."""
    whole = (127.5 * image_BCHW + 127.5).round().clamp(0, 255).to(torch.uint8)
    return whole.permute(0, 2, 3, 1).numpy()


def paste(image: Floats, top: int, left: int, colour: int) -> Floats:
    """Return the clean RGB image [128, 128, 3] in [0, 1] that belongs to a placement of patches."""
    canvas = np.empty((IMAGE_SIDE, IMAGE_SIDE, 3), np.float32)
    canvas[:] = np.asarray(PALETTE[COLOURS[colour]], np.float32) / 255
    # At a negative offset the outer patches of the object lie outside; they are empty.
    (y, inner_y), (x, inner_x) = ((max(i * PATCH, 0), max(-i * PATCH, 0)) for i in (top, left))
    inside = image[inner_y : inner_y + IMAGE_SIDE - y, inner_x : inner_x + IMAGE_SIDE - x]
    window = canvas[y : y + inside.shape[0], x : x + inside.shape[1]]
    window[:] = inside[..., :3] + (1 - inside[..., 3:]) * window
    return canvas


def example(source: TrainingSource, images: Floats, rng: np.random.Generator) -> tuple[Any, Floats]:
    """Textured tokens [16, 16] of a trained pair and their image."""
    concept = int(rng.integers(len(source.names)))
    colour = source.colour(concept, rng)
    offset = source.offset(concept, rng)
    tokens = source.tokens_at(concept, colour, offset, rng)
    return tokens, paste(images[concept], *offset, colour)


class PixelTrainer:
    """The decoder, its average, its optimisers, and its progress."""

    def __init__(
        self,
        pixels: TamingDecoder,
        source: TrainingSource,
        images: Floats,
        plan: PixelPlan,
        folder: Path,
    ) -> None:
        self.pixels = pixels.train()
        self.pixels.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.source, self.images, self.plan = source, images, plan
        self.average = copy.deepcopy(pixels).requires_grad_(False).eval()
        matrices = [p for n, p in pixels.named_parameters() if p.ndim == 4 and "conv_out" not in n]
        rest = [p for n, p in pixels.named_parameters() if p.ndim != 4 or "conv_out" in n]
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=plan.muon_lr),
            torch.optim.AdamW(rest, lr=plan.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.base_rates = [o.param_groups[0]["lr"] for o in self.optimisers]
        self.step, self.spent_s = 0, 0.0
        self.checkpoint = folder / "pixels.pt"
        if self.checkpoint.exists():
            self.step, self.spent_s = checkpoint.resume(
                self.checkpoint, self._networks(), self.optimisers
            )

    def run(self, max_steps: int | None = None) -> None:
        """Train until the budget is spent, saving as it goes."""
        last_save = time.monotonic()
        while self.spent_s < self.plan.budget_s and (max_steps is None or self.step < max_steps):
            self.one_step()
            if time.monotonic() - last_save > self.plan.save_every_s:
                self.save()
                last_save = time.monotonic()
        self.save()

    def one_step(self) -> float:
        """One batch, one update."""
        began = time.monotonic()
        rng = np.random.default_rng((self.source.seed, 1, self.step))
        tokens, clean = zip(
            *(example(self.source, self.images, rng) for _ in range(self.plan.batch)), strict=True
        )
        tokens_BC = torch.from_numpy(np.stack(tokens)).flatten(1)
        want = torch.from_numpy(np.stack(clean)).permute(0, 3, 1, 2) * 2 - 1
        with torch.autocast("cpu", torch.bfloat16):
            got = self.pixels(tokens_BC.view(-1, GRID, GRID))
        loss = self._loss(got.float(), want, tokens_BC)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.spent_s / self.plan.budget_s)))
        rate = min(1.0, (self.step + 1) / self.plan.warmup_steps) * max(0.01, cosine)
        self.pixels.zero_grad(set_to_none=True)
        loss.backward()
        for optimiser, base in zip(self.optimisers, self.base_rates, strict=True):
            optimiser.param_groups[0]["lr"] = base * rate
            optimiser.step()
        self._average()
        self.step += 1
        self.spent_s += time.monotonic() - began
        return loss.item()

    def _loss(self, got: Tensor, want: Tensor, tokens_BC: Tensor) -> Tensor:
        """Absolute and squared error, flat background weighted up, and the error of edges."""
        side = IMAGE_SIDE // PATCH
        flat = (tokens_BC >= N_PATCH_TOKENS).float().view(-1, 1, side, side)
        weight = 1 + (self.plan.flat_weight - 1) * flat.repeat_interleave(
            PATCH, 2
        ).repeat_interleave(PATCH, 3)
        error = got - want
        edges = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
        flat_error = ((error.abs() + 2 * error.square()) * weight).mean()
        return flat_error + self.plan.edge_weight * edges

    @torch.no_grad()
    def _average(self) -> None:
        """Move the average toward the weights, faster while it is young."""
        keep = min(self.plan.average, (1 + self.step) / (10 + self.step))
        for mean, p in zip(self.average.parameters(), self.pixels.parameters(), strict=True):
            mean.lerp_(p, 1 - keep)

    def _networks(self) -> dict[str, nn.Module]:
        return {"pixels": self.pixels, "average": self.average}

    def save(self) -> None:
        """Write the checkpoint."""
        checkpoint.save(
            self.checkpoint, self._networks(), self.optimisers, step=self.step, spent_s=self.spent_s
        )
