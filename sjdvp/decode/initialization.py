"""The distributions from which positions that enter the window get their first draft. All are lossless: the distribution is stored as it is used."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sjdvp.decode.state import pick
from sjdvp.interfaces import ImageLayout


@dataclass(frozen=True, slots=True)
class Known:
    """What a fresh rule may forward_pass at: the distributions and drafts of this step at positions n..n+W-1, and the trail of older distributions."""

    target_probs_BWV: Tensor
    draft_BW: Tensor
    trail_BRV: Tensor
    end_B: Tensor  # the first position without a distribution, n + W
    layout: ImageLayout


def uniform(known: Known, pos_BW: Tensor) -> Tensor:
    """Return a distribution in which all tokens are alike."""
    return known.target_probs_BWV.new_full(
        (*pos_BW.shape, known.layout.vocab_size), 1 / known.layout.vocab_size
    )


def left(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the newest distribution to the left: that of the last column of the window."""
    return known.target_probs_BWV[:, -1:].expand(-1, pos_BW.shape[1], -1)


def above(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the newest distribution of the same column one row up (further up, if that has none yet); uniform in the first row."""
    stride, n_trail = known.layout.stride, known.trail_BRV.shape[1]
    missing_BW = (pos_BW - known.end_B[:, None]).clamp(min=0)
    source_BW = pos_BW - stride * (1 + missing_BW // stride)
    probs_BWV = pick(known.trail_BRV, source_BW.remainder(n_trail))
    return torch.where(source_BW[..., None] >= 0, probs_BWV, 1 / known.layout.vocab_size)


def repeat(known: Known, pos_BW: Tensor) -> Tensor:
    """Return a one-hot distribution at the last draft's code (`repeat_horizon` of the official SJD code, for replication)."""
    last_B1 = known.draft_BW[:, -2:-1] if known.draft_BW.shape[1] > 1 else known.draft_BW
    return (
        one_hot(last_B1, known.layout.vocab_size)
        .to(known.target_probs_BWV.dtype)
        .expand(-1, pos_BW.shape[1], -1)
    )


RULES = {"uniform": uniform, "left": left, "above": above, "repeat": repeat}
