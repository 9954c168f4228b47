"""Drafting: how draft tokens are sampled, and the distribution of positions that enter the window.

Every draft token is sampled from exactly the distribution that is stored beside it as q. That keeps
all of this lossless, whatever the distribution is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sjdvp.config import DecoderConfig
from sjdvp.interfaces import Drafter, ImageLayout
from sjdvp.rng import Noise, Purpose
from sjdvp.sampling import gumbel_sample, keeps, one_hot_where, probability_of, residual, sample


def independent(
    probs_BWV: Tensor, old_probs_BWV: Tensor, old_BW: Tensor, has_old_BW: Tensor, noise: Noise
) -> Tensor:
    """Sample again at every iteration (SJD, arXiv 2410.01699). See `sjdvp.interfaces.Drafter`."""
    return sample(probs_BWV, noise.ticks_BW(Purpose.DRAFT))


def coupled(
    probs_BWV: Tensor, old_probs_BWV: Tensor, old_BW: Tensor, has_old_BW: Tensor, noise: Noise
) -> Tensor:
    """Keep the old draft as often as a maximal coupling of both distributions allows.

    MC-SJD / SCD, arXiv 2510.24211: keep x with probability min(1, p(x)/q(x)), else sample (p - q)+.
    Without an old draft, q counts as zero and p is sampled. See `sjdvp.interfaces.Drafter`.
    """
    p_BW, q_BW = probability_of(probs_BWV, old_BW), probability_of(old_probs_BWV, old_BW)
    rest_BWV = residual(probs_BWV, old_probs_BWV, has_old_BW[..., None])
    new_BW = sample(rest_BWV, noise.ticks_BW(Purpose.DRAFT))
    keeps_BW = has_old_BW & keeps(p_BW, q_BW, noise.ticks_BW(Purpose.KEEP))
    return torch.where(keeps_BW, old_BW, new_BW)


@dataclass(frozen=True)
class Gumbel:
    """Gumbel-max sampling with noise that stays with the position (SCD-GS, arXiv 2510.24211)."""

    n_support: int  # see `sjdvp.sampling.gumbel_sample`

    def __call__(
        self,
        probs_BWV: Tensor,
        old_probs_BWV: Tensor,
        old_BW: Tensor,
        has_old_BW: Tensor,
        noise: Noise,
    ) -> Tensor:
        """See `sjdvp.interfaces.Drafter`."""
        return gumbel_sample(probs_BWV, noise, self.n_support)


def make_drafter(config: DecoderConfig, n_support: int) -> Drafter:
    """Build the drafter that a configuration names; `n_support` as in `Decoder`."""
    if config.drafter == "gumbel":
        return Gumbel(n_support)
    return coupled if config.drafter == "coupled" else independent


@dataclass(frozen=True, slots=True)
class Known:
    """What an initialization may use: this iteration's distributions and drafts, and older ones.

    It returns the distributions of the positions `pos_BW`; that of a forced one is one-hot at
    token 0.
    """

    target_probs_BWV: Tensor  # at positions n..n+W-1
    draft_BW: Tensor
    recent_BAV: Tensor  # see `sjdvp.decode.state.State`
    slot_B1: Tensor  # 0..B-1
    end_B: Tensor  # n + W, the first position without a distribution
    layout: ImageLayout


def uniform(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the uniform distribution [B, W, V]."""
    return uniform_probs(known.layout, pos_BW, known.target_probs_BWV.dtype)


def left(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the target distribution of the last column of the window [B, W, V]."""
    probs_BWV = known.target_probs_BWV[:, -1:].expand(-1, pos_BW.shape[1], -1)
    return one_hot_where(known.layout.forced_at(pos_BW), probs_BWV)


def above(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the newest target distribution of the token one image row up [B, W, V].

    Where that position has none yet, it is taken further up; in the first image row, uniform.
    """
    cell_BW = known.layout.cell_above(pos_BW, known.end_B)
    return known.recent_BAV[known.slot_B1, cell_BW]


def repeat(known: Known, pos_BW: Tensor) -> Tensor:
    """Return a one-hot distribution at the last draft token [B, W, V].

    It is `repeat_horizon` of the official SJD code, for replication.
    """
    last_B1 = known.draft_BW[:, -2:-1] if known.draft_BW.shape[1] > 1 else known.draft_BW
    probs_B1V = one_hot(last_B1, known.layout.vocab_size).to(known.target_probs_BWV.dtype)
    probs_BWV = probs_B1V.expand(-1, pos_BW.shape[1], -1)
    return one_hot_where(known.layout.forced_at(pos_BW), probs_BWV)


def uniform_probs(layout: ImageLayout, pos_BW: Tensor, dtype: torch.dtype) -> Tensor:
    """Return uniform distributions, one-hot at forced positions [B, W, V]."""
    shape, device = (*pos_BW.shape, layout.vocab_size), pos_BW.device
    probs_BWV = torch.full(shape, 1 / layout.vocab_size, dtype=dtype, device=device)
    return one_hot_where(layout.forced_at(pos_BW), probs_BWV)


Initialization = Callable[[Known, Tensor], Tensor]
INITIALIZATIONS: dict[str, Initialization] = {
    "uniform": uniform,
    "above": above,
    "left": left,
    "repeat": repeat,
}
