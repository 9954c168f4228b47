"""Muon: momentum made orthogonal by a Newton-Schulz iteration, for matrices and kernels only.

Matrices of one shape are updated together as a batch. Knows nothing about the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrix_NRC: Tensor, rounds: int = 5) -> Tensor:
    """Return the nearest half-orthogonal matrices, roughly: singular values of 0.7 to 1.2."""
    a, b, c = COEFFICIENTS
    x = matrix_NRC / matrix_NRC.flatten(1).norm(dim=1).clamp_min(1e-7)[:, None, None]
    x = x.bfloat16()
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised, scaled by the shape."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for matrices in by_shape.values():
                self._update(matrices, group)

    def _update(self, matrices: list[Tensor], group: dict[str, float]) -> None:
        """One step for all matrices of one shape."""
        pushed = []
        for p in matrices:
            assert p.grad is not None
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            momentum.lerp_(p.grad, 1 - group["momentum"])
            pushed.append(p.grad.lerp(momentum, group["momentum"]))
        stack = torch.stack(pushed).flatten(2)
        scale = max(1.0, stack.size(1) / stack.size(2)) ** 0.5
        for p, change in zip(matrices, orthogonal(stack), strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(change.view_as(p).to(p.dtype), alpha=-group["lr"] * scale)
