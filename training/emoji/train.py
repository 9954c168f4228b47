"""Training of the transformer: Muon for matrices, AdamW for the rest, averaged weights.

The schedule is a cosine over the seconds spent, which the checkpoint keeps, so a stopped run
resumes. One thread in bfloat16: on a CPU with AMX that is four times as fast as float32.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from training.emoji import checkpoint
from training.emoji.batches import N_POSITIONS, TrainingSource
from training.emoji.captions import PAD
from training.emoji.muon import Muon


@dataclass(frozen=True)
class TransformerPlan:
    """Budget and hyperparameters."""

    budget_s: float = 17500.0
    batch: int = 16
    compile: bool = True
    muon_lr: float = 0.015
    adam_lr: float = 2e-3
    weight_decay: float = 0.01
    warmup_steps: int = 30
    final_share: float = 0.01
    corrupted: float = 0.5
    sparse: int = 128
    dense_from: float = 0.7
    average: float = 0.99
    save_every_s: float = 150.0
    log_every: int = 10

    def rate(self, progress: float, step: int) -> float:
        """Return the share of the full learning rate at this point of the budget."""
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return min(1.0, (step + 1) / self.warmup_steps) * (
            self.final_share + (1 - self.final_share) * cosine
        )


def loss_of(
    transformer: LlamaForCausalLM,
    n_image_tokens: int,
    text_BT: Tensor,
    pos_BK: Tensor,
    input_BK: Tensor,
    target_BK: Tensor,
    weight_BK: Tensor,
) -> Tensor:
    """Cross-entropy of the tokens at the kept positions; position 0 is the text's last word."""
    offset = transformer.config.vocab_size - n_image_tokens
    ids = torch.cat([text_BT, input_BK[:, 1:] + offset], dim=1)
    real = ids != PAD
    words = (text_BT != PAD).cumsum(1) - 1
    positions = torch.cat([words.clamp_min(0), words[:, -1:] + pos_BK[:, 1:]], dim=1)
    length = ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    mask = (causal & real[:, None, :]) | torch.eye(length, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        out = transformer.model(
            input_ids=ids, attention_mask=mask[:, None], position_ids=positions, use_cache=False
        )
        hidden = out.last_hidden_state[:, text_BT.shape[1] - 1 :]
        logits = hidden @ transformer.lm_head.weight[offset:].T
    loss = F.cross_entropy(logits.float().flatten(0, 1), target_BK.flatten(), reduction="none")
    return (loss * weight_BK.flatten()).sum() / weight_BK.sum()


class Trainer:
    """The transformer, its optimisers, the average of its weights, and its progress."""

    def __init__(
        self,
        transformer: LlamaForCausalLM,
        source: TrainingSource,
        plan: TransformerPlan,
        folder: Path,
    ) -> None:
        self.transformer, self.source, self.plan, self.folder = transformer, source, plan, folder
        self.average = copy.deepcopy(transformer).requires_grad_(False)
        self.step, self.spent_s = 0, 0.0
        matrices, rest = split_parameters(transformer)
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=plan.muon_lr, weight_decay=plan.weight_decay),
            torch.optim.AdamW(rest, lr=plan.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.base_rates = [o.param_groups[0]["lr"] for o in self.optimisers]
        folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = folder / "transformer.pt"
        if self.checkpoint.exists():
            self.step, self.spent_s = checkpoint.resume(
                self.checkpoint, self._networks(), self.optimisers
            )
        self.loss_of: Callable[..., Tensor] = (
            torch.compile(loss_of, dynamic=False) if plan.compile else loss_of
        )

    @property
    def progress(self) -> float:
        """The share of the budget that is spent."""
        return self.spent_s / self.plan.budget_s

    @property
    def n_kept(self) -> int:
        """Positions of an image that are trained on now: at first most background is left out."""
        return self.plan.sparse if self.progress < self.plan.dense_from else N_POSITIONS

    def run(self, max_steps: int | None = None) -> None:
        """Train until the budget is spent (or a number of steps is done), saving as it goes."""
        last_save = time.monotonic()
        while self.progress < 1 and (max_steps is None or self.step < max_steps):
            self.one_step()
            if time.monotonic() - last_save > self.plan.save_every_s:
                self.save()
                last_save = time.monotonic()
        self.save()

    def one_step(self) -> float:
        """One batch, one update of the weights and of their average."""
        began = time.monotonic()
        batch = self.source.batch(self.step, self.plan.batch, self.plan.corrupted, self.n_kept)
        loss = self.loss_of(self.transformer, self.source.n_image_tokens, *batch.tensors())
        loss.backward()
        rate = self.plan.rate(self.progress, self.step)
        for optimiser, base in zip(self.optimisers, self.base_rates, strict=True):
            optimiser.param_groups[0]["lr"] = base * rate
            optimiser.step()
        self.transformer.zero_grad(set_to_none=True)
        self._average()
        self.step += 1
        self.spent_s += time.monotonic() - began
        if self.step % self.plan.log_every == 0:
            self._log(
                loss=round(loss.item(), 4),
                rate=round(rate, 4),
                step_s=round(time.monotonic() - began, 2),
            )
        return loss.item()

    @torch.no_grad()
    def _average(self) -> None:
        """Move the average to the weights, faster at first."""
        keep = min(self.plan.average, (1 + self.step) / (10 + self.step))
        for mean, p in zip(self.average.parameters(), self.transformer.parameters(), strict=True):
            mean.lerp_(p, 1 - keep)

    def _log(self, **values: float) -> None:
        """One JSON line in the run's log."""
        row = {"step": self.step, "spent_s": round(self.spent_s, 1), **values}
        with (self.folder / "train.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    def _networks(self) -> dict[str, nn.Module]:
        return {"transformer": self.transformer, "average": self.average}

    def save(self) -> None:
        """Write the checkpoint."""
        checkpoint.save(
            self.checkpoint, self._networks(), self.optimisers, step=self.step, spent_s=self.spent_s
        )


def split_parameters(transformer: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the layers' weight matrices, and embeddings, head and norms."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, p in transformer.named_parameters():
        (matrices if p.ndim == 2 and "layers." in name else rest).append(p)
    return matrices, rest
