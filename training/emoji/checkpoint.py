"""A training run on disk: written whole or not at all, and taken up where it was."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer


def save(
    path: Path,
    networks: dict[str, nn.Module],
    optimisers: Sequence[Optimizer],
    *,
    step: int,
    spent_s: float,
) -> None:
    """Write the checkpoint beside its name, then rename it."""
    state = {name: network.state_dict() for name, network in networks.items()}
    partial = path.with_suffix(".tmp")
    torch.save(
        {
            **state,
            "optimisers": [o.state_dict() for o in optimisers],
            "step": step,
            "spent_s": spent_s,
        },
        partial,
    )
    partial.replace(path)


def resume(
    path: Path, networks: dict[str, nn.Module], optimisers: Sequence[Optimizer]
) -> tuple[int, float]:
    """Put everything back in place; return the step and the seconds spent so far."""
    state = torch.load(path, weights_only=True)
    for name, network in networks.items():
        network.load_state_dict(state[name])
    for optimiser, kept in zip(optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(kept)
    return state["step"], state["spent_s"]
