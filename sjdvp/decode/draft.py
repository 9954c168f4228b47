"""Drafting: how draft tokens are sampled, and the distribution of positions that enter the window.

Every draft token is sampled from exactly the distribution that is stored beside it as q. That keeps
all of this lossless, whatever the distribution is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sjdvp.config import DecoderConfig
from sjdvp.decode.distributions import Form, probability_of
from sjdvp.interfaces import Drafter, ImageLayout
from sjdvp.rng import Noise, Purpose
from sjdvp.sampling import keeps


@dataclass(frozen=True)
class Independent:
    """Sample again at every iteration (SJD, arXiv 2410.01699)."""

    form: Form

    def __call__(
        self,
        probs_BWY: Tensor,
        old_probs_BWY: Tensor,
        old_BW: Tensor,
        has_old_BW: Tensor,
        noise: Noise,
    ) -> Tensor:
        """See `sjdvp.interfaces.Drafter`."""
        return self.form.sample(probs_BWY, noise.ticks_BW(Purpose.DRAFT))


@dataclass(frozen=True)
class Coupled:
    """Keep the old draft as often as a maximal coupling of both distributions allows.

    MC-SJD / SCD, arXiv 2510.24211: keep x with probability min(1, p(x)/q(x)), else sample (p - q)+.
    Without an old draft, q counts as zero and p is sampled.
    """

    form: Form

    def __call__(
        self,
        probs_BWY: Tensor,
        old_probs_BWY: Tensor,
        old_BW: Tensor,
        has_old_BW: Tensor,
        noise: Noise,
    ) -> Tensor:
        """See `sjdvp.interfaces.Drafter`."""
        form, has_old_BW1 = self.form, has_old_BW[..., None]
        p_BW = probability_of(form, probs_BWY, old_BW)
        q_BW = probability_of(form, old_probs_BWY, old_BW)
        ticks_BW = noise.ticks_BW(Purpose.DRAFT)
        new_BW = form.sample_residual(probs_BWY, old_probs_BWY, has_old_BW1, ticks_BW)
        keeps_BW = has_old_BW & keeps(p_BW, q_BW, noise.ticks_BW(Purpose.KEEP))
        return torch.where(keeps_BW, old_BW, new_BW)


@dataclass(frozen=True)
class Gumbel:
    """Gumbel-max sampling with noise that stays with the position (SCD-GS, arXiv 2510.24211)."""

    form: Form

    def __call__(
        self,
        probs_BWY: Tensor,
        old_probs_BWY: Tensor,
        old_BW: Tensor,
        has_old_BW: Tensor,
        noise: Noise,
    ) -> Tensor:
        """See `sjdvp.interfaces.Drafter`."""
        return self.form.gumbel_sample(probs_BWY, noise)


def make_drafter(config: DecoderConfig, form: Form) -> Drafter:
    """Build the drafter that a configuration names."""
    if config.drafter == "gumbel":
        return Gumbel(form)
    return Coupled(form) if config.drafter == "coupled" else Independent(form)


@dataclass(frozen=True, slots=True)
class Known:
    """What an initialization may use: this iteration's distributions and drafts, and older ones.

    It returns the distributions of the positions `pos_BW`; that of a forced one is one-hot at
    token 0.
    """

    target_probs_BWY: Tensor  # at positions n..n+W-1
    draft_BW: Tensor
    recent_BAY: Tensor  # see `sjdvp.decode.state.State`
    slot_B1: Tensor  # 0..B-1
    end_B: Tensor  # n + W, the first position without a distribution
    layout: ImageLayout
    form: Form


def uniform(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the uniform distribution [B, W, Y]."""
    forced_BW, dtype = known.layout.forced_at(pos_BW), known.target_probs_BWY.dtype
    return known.form.uniform(forced_BW, dtype)


def left(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the target distribution of the last column of the window [B, W, Y]."""
    probs_BWY = known.target_probs_BWY[:, -1:].expand(-1, pos_BW.shape[1], -1)
    return known.form.one_hot_where(known.layout.forced_at(pos_BW), probs_BWY)


def above(known: Known, pos_BW: Tensor) -> Tensor:
    """Return the newest target distribution of the token one image row up [B, W, Y].

    Where that position has none yet, it is taken further up; in the first image row, uniform.
    """
    cell_BW = known.layout.cell_above(pos_BW, known.end_B)
    return known.recent_BAY[known.slot_B1, cell_BW]


def repeat(known: Known, pos_BW: Tensor) -> Tensor:
    """Return a one-hot distribution at the last draft token [B, W, Y].

    It is `repeat_horizon` of the official SJD code, for replication.
    """
    last_B1 = known.draft_BW[:, -2:-1] if known.draft_BW.shape[1] > 1 else known.draft_BW
    probs_B1Y = known.form.one_hot(last_B1, known.target_probs_BWY.dtype)
    probs_BWY = probs_B1Y.expand(-1, pos_BW.shape[1], -1)
    return known.form.one_hot_where(known.layout.forced_at(pos_BW), probs_BWY)


Initialization = Callable[[Known, Tensor], Tensor]
INITIALIZATIONS: dict[str, Initialization] = {
    "uniform": uniform,
    "above": above,
    "left": left,
    "repeat": repeat,
}
