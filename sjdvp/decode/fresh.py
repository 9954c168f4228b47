"""The laws from which positions that enter the window get their first draft. All are lossless: the law is stored as it is used."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sjdvp.decode.window import Layout, pick


@dataclass(frozen=True, slots=True)
class Known:
    """What a fresh rule may look at: the laws and drafts of this step at positions n..n+W-1, and the trail of older laws."""

    p_BWV: Tensor
    draft_BW: Tensor
    trail_BRV: Tensor
    end_B: Tensor  # the first position without a law, n + W
    layout: Layout


def uniform(known: Known, pos_BW: Tensor) -> Tensor:
    """Return a law in which all codes are alike."""
    return known.p_BWV.new_full((*pos_BW.shape, known.layout.n_codes), 1 / known.layout.n_codes)


def left(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the newest law to the left: that of the last column of the window."""
    return known.p_BWV[:, -1:].expand(-1, pos_BW.shape[1], -1)


def above(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the newest law of the same column one row up (further up, if that has none yet); uniform in the first row."""
    stride, n_trail = known.layout.stride, known.trail_BRV.shape[1]
    missing_BW = (pos_BW - known.end_B[:, None]).clamp(min=0)
    source_BW = pos_BW - stride * (1 + missing_BW // stride)
    law_BWV = pick(known.trail_BRV, source_BW.remainder(n_trail))
    return torch.where(source_BW[..., None] >= 0, law_BWV, 1 / known.layout.n_codes)


def repeat(known: Known, pos_BW: Tensor) -> Tensor:
    """Return a one-hot law at the last draft's code (`repeat_horizon` of the official SJD code, for replication)."""
    last_B1 = known.draft_BW[:, -2:-1] if known.draft_BW.shape[1] > 1 else known.draft_BW
    return one_hot(last_B1, known.layout.n_codes).to(known.p_BWV.dtype).expand(-1, pos_BW.shape[1], -1)


RULES = {"uniform": uniform, "left": left, "above": above, "repeat": repeat}
