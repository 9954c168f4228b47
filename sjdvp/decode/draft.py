"""Drafting: how draft tokens are sampled, and the distribution of positions that enter the window.

Every draft token is sampled from exactly the distribution that is stored beside it as q. That keeps
all of this lossless, whatever the distribution is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sjdvp.decode.state import pick
from sjdvp.interfaces import Drafter, ImageLayout
from sjdvp.rng import Noise, Purpose
from sjdvp.sampling import gumbel_sample, probability_of, residual, sample


def independent(
    probs_BWV: Tensor, old_probs_BWV: Tensor, old_BW: Tensor, has_old_BW: Tensor, noise: Noise
) -> Tensor:
    """Sample again at every iteration (SJD, arXiv 2410.01699). See `sjdvp.interfaces.Drafter`."""
    return sample(probs_BWV, noise.uniform_BW(Purpose.DRAFT))


def coupled(
    probs_BWV: Tensor, old_probs_BWV: Tensor, old_BW: Tensor, has_old_BW: Tensor, noise: Noise
) -> Tensor:
    """Keep the old draft as often as a maximal coupling of both distributions allows.

    MC-SJD / SCD, arXiv 2510.24211: keep x with probability min(1, p(x)/q(x)), else sample (p - q)+.
    Without an old draft, q counts as zero and p is sampled. See `sjdvp.interfaces.Drafter`.
    """
    u_BW = noise.uniform_BW(Purpose.KEEP)
    p_BW, q_BW = probability_of(probs_BWV, old_BW), probability_of(old_probs_BWV, old_BW)
    rest_BWV = residual(probs_BWV, old_probs_BWV * has_old_BW[..., None])
    new_BW = sample(rest_BWV, noise.uniform_BW(Purpose.DRAFT))
    return torch.where(has_old_BW & (u_BW * q_BW < p_BW), old_BW, new_BW)


def gumbel(
    probs_BWV: Tensor, old_probs_BWV: Tensor, old_BW: Tensor, has_old_BW: Tensor, noise: Noise
) -> Tensor:
    """Gumbel-max sampling with noise that stays with the position (SCD-GS, arXiv 2510.24211).

    See `sjdvp.interfaces.Drafter`.
    """
    return gumbel_sample(probs_BWV, noise.exponential_BWV(probs_BWV.shape[-1]))


DRAFTERS: dict[str, Drafter] = {"independent": independent, "coupled": coupled, "gumbel": gumbel}


@dataclass(frozen=True, slots=True)
class Known:
    """What an initialization may use: this iteration's distributions and drafts, and older ones."""

    target_probs_BWV: Tensor  # at positions n..n+W-1
    draft_BW: Tensor
    recent_BAV: Tensor  # see `sjdvp.decode.state.State`
    end_B: Tensor  # n + W, the first position without a distribution
    layout: ImageLayout


def uniform(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the uniform distribution [B, W, V]."""
    V = known.layout.vocab_size
    return known.target_probs_BWV.new_full((*pos_BW.shape, V), 1 / V)


def left(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the target distribution of the last column of the window [B, W, V]."""
    return known.target_probs_BWV[:, -1:].expand(-1, pos_BW.shape[1], -1)


def above(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the newest target distribution of the token one image row up [B, W, V].

    Where that position has none yet, it is taken further up; in the first image row, uniform.
    """
    source_BW = known.layout.above(pos_BW, known.end_B)
    probs_BWV = pick(known.recent_BAV, source_BW.remainder(known.recent_BAV.shape[1]))
    return torch.where(source_BW[..., None] >= 0, probs_BWV, 1 / known.layout.vocab_size)


def repeat(known: Known, pos_BW: Tensor) -> Tensor:
    """Return a one-hot distribution at the last draft token [B, W, V].

    It is `repeat_horizon` of the official SJD code, for replication.
    """
    last_B1 = known.draft_BW[:, -2:-1] if known.draft_BW.shape[1] > 1 else known.draft_BW
    probs_B1V = one_hot(last_B1, known.layout.vocab_size).to(known.target_probs_BWV.dtype)
    return probs_B1V.expand(-1, pos_BW.shape[1], -1)


Initialization = Callable[[Known, Tensor], Tensor]
INITIALIZATIONS: dict[str, Initialization] = {
    "uniform": uniform,
    "above": above,
    "left": left,
    "repeat": repeat,
}
