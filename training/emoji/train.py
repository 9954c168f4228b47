"""Training of the transformer: Muon for matrices, AdamW for the rest, averaged weights.

The schedule is a cosine over the seconds spent, which the checkpoint keeps, so a stopped run
resumes. Two workers, each on one core, take small batches from one queue: on a busy machine that is
several times faster than two threads inside every operation.
"""

from __future__ import annotations

import copy
import json
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from training.emoji import checkpoint
from training.emoji.batches import ALL_TOPS, N_POSITIONS, TOPS, Batch, TrainingSource
from training.emoji.captions import PAD
from training.emoji.muon import Muon


@dataclass(frozen=True)
class TransformerPlan:
    """Budget and hyperparameters."""

    budget_s: float = 11700.0
    batch: int = 16
    micro: int = 8
    workers: int = 2
    compile: bool = True
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    weight_decay: float = 0.01
    warmup_steps: int = 30
    final_share: float = 0.02
    corrupted: float = 0.5
    clean_from: float = 0.9
    sparse: int = 160
    dense_from: float = 0.85
    last_s: float = 660.0
    last_rate: float = 0.16
    average: float = 0.99
    save_every_s: float = 180.0
    log_every: int = 10

    def rate(self, progress: float, step: int) -> float:
        """Return the share of the full learning rate at this point of the budget."""
        if progress >= 1:
            return self.last_rate * (1 - self.last(progress))
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return min(1.0, (step + 1) / self.warmup_steps) * (
            self.final_share + (1 - self.final_share) * cosine
        )

    def corrupted_share(self, progress: float) -> float:
        """Return the share of images with corrupted inputs: none at the end of each part."""
        if progress >= 1:
            return self.corrupted / 2 if self.last(progress) < 0.5 else 0.0
        return self.corrupted if progress < self.clean_from else 0.0

    def last(self, progress: float) -> float:
        """Return how much of the last part is done; below 0 before it."""
        return (progress - 1) * self.budget_s / self.last_s


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
    out = transformer.model(
        input_ids=ids, attention_mask=mask[:, None], position_ids=positions, use_cache=False
    )
    hidden = out.last_hidden_state[:, text_BT.shape[1] - 1 :]
    logits = hidden @ transformer.lm_head.weight[offset:].T
    loss = F.cross_entropy(logits.flatten(0, 1), target_BK.flatten(), reduction="none")
    return (loss * weight_BK.flatten()).sum() / weight_BK.sum()


class GradientWorkers:
    """Threads that share the weights and each keep their own gradients."""

    def __init__(
        self, transformer: LlamaForCausalLM, n_image_tokens: int, plan: TransformerPlan
    ) -> None:
        self.n_image_tokens, self.plan = n_image_tokens, plan
        self.replicas = [
            transformer,
            *(share_weights(transformer) for _ in range(plan.workers - 1)),
        ]
        self.loss_of: Callable[..., Tensor] = (
            torch.compile(loss_of, dynamic=False) if plan.compile else loss_of
        )

    def gradients(self, batch: Batch) -> float:
        """Fill the first replica's gradients with the mean over the batch; return the loss."""
        pieces = batch.pieces(self.plan.micro)
        n_pieces, lock, losses = len(pieces), threading.Lock(), []

        def work(replica: LlamaForCausalLM) -> None:
            while True:
                with lock:
                    if not pieces:
                        return
                    piece = pieces.pop()
                loss = self.loss_of(replica, self.n_image_tokens, *piece)
                (loss / n_pieces).backward()
                losses.append(loss.item())

        side_by_side([partial(work, replica) for replica in self.replicas])
        self._gather()
        return sum(losses) / n_pieces

    def warm_up(self, batch: Batch) -> None:
        """Compile for this batch's shape before the threads start."""
        for replica in self.replicas:
            self.loss_of(replica, self.n_image_tokens, *batch.pieces(self.plan.micro)[0]).backward()
            replica.zero_grad(set_to_none=True)

    def _gather(self) -> None:
        """Add the other replicas' gradients to the first one's."""
        main = list(self.replicas[0].parameters())
        for replica in self.replicas[1:]:
            for p, other in zip(main, replica.parameters(), strict=True):
                if other.grad is not None:
                    p.grad = other.grad if p.grad is None else p.grad.add_(other.grad)
            replica.zero_grad(set_to_none=True)


def share_weights(transformer: LlamaForCausalLM) -> LlamaForCausalLM:
    """Make a replica whose parameters are views of the same storage."""
    replica = copy.deepcopy(transformer)
    for p, mine in zip(transformer.parameters(), replica.parameters(), strict=True):
        mine.data = p.data
    return replica


def side_by_side(calls: list[Callable[[], Any]]) -> None:
    """Run every call in its own thread and pass on the first failure."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for running in [pool.submit(call) for call in calls]:
            running.result()


class Trainer:
    """The transformer, its optimisers, its averages, and its progress.

    Objects are at some offsets, which teaches their shapes sooner, and at all offsets in the last
    part. `shipped` is halfway between the average before that part and the one after it: shapes as
    right as before, as many offsets as after.
    """

    def __init__(
        self,
        transformer: LlamaForCausalLM,
        source: TrainingSource,
        plan: TransformerPlan,
        folder: Path,
    ) -> None:
        self.transformer, self.source, self.plan, self.folder = transformer, source, plan, folder
        self.average = copy.deepcopy(transformer).requires_grad_(False)
        self.before = copy.deepcopy(self.average)
        self.step, self.spent_s = 0, 0.0
        matrices, rest = split_parameters(transformer)
        tall = [p for p in matrices if p.shape[0] == p.shape[1]]
        wide = [p for p in matrices if p.shape[0] != p.shape[1]]
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(group, lr=plan.muon_lr, weight_decay=plan.weight_decay) for group in (wide, tall)
        ]
        self.optimisers.append(
            torch.optim.AdamW(rest, lr=plan.adam_lr, betas=(0.9, 0.98), weight_decay=0.0)
        )
        self.base_rates = [o.param_groups[0]["lr"] for o in self.optimisers]
        folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = folder / "transformer.pt"
        if self.checkpoint.exists():
            self.step, self.spent_s = checkpoint.resume(
                self.checkpoint, self._networks(), self.optimisers
            )
        self.workers = GradientWorkers(transformer, source.n_image_tokens, plan)

    @property
    def progress(self) -> float:
        """The share of the budget that is spent; above 1 in the last part."""
        return self.spent_s / self.plan.budget_s

    @property
    def n_kept(self) -> int:
        """Positions of an image that are trained on now: at first most background is left out."""
        return self.plan.sparse if self.progress < self.plan.dense_from else N_POSITIONS

    def run(self, max_steps: int | None = None) -> None:
        """Train until the budget is spent (or a number of steps is done), saving as it goes."""
        for n_kept in (self.plan.sparse, N_POSITIONS):
            self.workers.warm_up(self.source.batch(0, self.plan.batch, 0.0, n_kept))
        last_save = time.monotonic()
        while self.plan.last(self.progress) < 1 and (max_steps is None or self.step < max_steps):
            self.one_step()
            if time.monotonic() - last_save > self.plan.save_every_s:
                self.save()
                last_save = time.monotonic()
        self.save()

    def one_step(self) -> float:
        """One batch, one update of the weights and of their average."""
        began = time.monotonic()
        share, tops = (
            self.plan.corrupted_share(self.progress),
            TOPS if self.progress < 1 else ALL_TOPS,
        )
        loss = self.workers.gradients(
            self.source.batch(self.step, self.plan.batch, share, self.n_kept, tops)
        )
        rate = self.plan.rate(self.progress, self.step)
        for optimiser, base in zip(self.optimisers, self.base_rates, strict=True):
            optimiser.param_groups[0]["lr"] = base * rate
        side_by_side([self.optimisers[0].step, self._update_rest])
        self.transformer.zero_grad(set_to_none=True)
        self._average()
        self.step += 1
        self.spent_s += time.monotonic() - began
        if self.step % self.plan.log_every == 0:
            self._log(
                loss=round(loss, 4), rate=round(rate, 4), step_s=round(time.monotonic() - began, 2)
            )
        return loss

    def _update_rest(self) -> None:
        """Update all but the first, widest group."""
        for optimiser in self.optimisers[1:]:
            optimiser.step()

    @torch.no_grad()
    def _average(self) -> None:
        """Move the averages to the weights, faster at first; `before` stops at the last part."""
        keep = min(self.plan.average, (1 + self.step) / (10 + self.step))
        for average in (self.average, self.before)[: 2 if self.progress < 1 else 1]:
            for mean, p in zip(average.parameters(), self.transformer.parameters(), strict=True):
                mean.lerp_(p, 1 - keep)

    @torch.no_grad()
    def shipped(self) -> LlamaForCausalLM:
        """Return the weights to ship."""
        mean = copy.deepcopy(self.average)
        for p, before in zip(mean.parameters(), self.before.parameters(), strict=True):
            p.lerp_(before, 0.5)
        return mean

    def _log(self, **values: float) -> None:
        """One JSON line in the run's log."""
        row = {"step": self.step, "spent_s": round(self.spent_s, 1), **values}
        with (self.folder / "train.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    def _networks(self) -> dict[str, nn.Module]:
        return {"transformer": self.transformer, "average": self.average, "before": self.before}

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
