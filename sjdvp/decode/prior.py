"""Verification prediction (SJD-VP, arXiv 2603.27115): from the laws a position has seen to the law its next draft is drawn from.

The predicted law is stored as q, so the committed law stays exactly the model's; prediction only changes how often drafts pass.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sjdvp.config import PriorConfig

_FLOOR = 1e-6  # added to a probability before its logarithm: a code that has just entered the top-k has had none


def past_weights(past_BLWV: Tensor, age_BW: Tensor, decay: float) -> Tensor:
    """Return the weight of each past law [B, L, W, 1]: decay^(l-1), zero where it does not exist, summing to one where any does."""
    n_laws = past_BLWV.shape[1]
    lag_L = torch.arange(n_laws, device=age_BW.device)
    weight_BLW = (lag_L[:, None] < age_BW[:, None, :]) * (decay ** lag_L.to(past_BLWV.dtype))[:, None]
    return (weight_BLW / weight_BLW.sum(1, keepdim=True).clamp(min=1e-12))[..., None]


def rising(p_BWV: Tensor, past_BLWV: Tensor, age_BW: Tensor, rises: int) -> Tensor:
    """Return where a code's probability rose strictly at each of the last `rises` steps [B, W, V]."""
    newer_BLWV = torch.cat([p_BWV[:, None], past_BLWV[:, : rises - 1]], 1)
    return (newer_BLWV > past_BLWV[:, :rises]).all(1) & (age_BW >= rises)[..., None]


def among_top(p_BWV: Tensor, k: int) -> Tensor:
    """Return where a code is among the k most probable of its law, ties included (k = 0: everywhere p is positive)."""
    if not 0 < k < p_BWV.shape[-1]:
        return p_BWV > 0
    kth = p_BWV.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return (p_BWV >= kth) & (p_BWV > 0)


def tilt(p_BWV: Tensor, gain_BWV: Tensor, where_BWV: Tensor, clip: float) -> Tensor:
    """Return the law proportional to p * exp(gain) where asked, p elsewhere; |gain| is at most `clip` nats."""
    tilted_BWV = p_BWV * (gain_BWV.clamp(-clip, clip) * where_BWV).exp()
    return tilted_BWV / tilted_BWV.sum(-1, keepdim=True)


class NoPrior:
    """No prediction: drafts are drawn from the plain law."""

    n_laws = 0
    n_candidates = 0

    def __call__(self, p_BWV: Tensor, past_BLWV: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        return p_BWV[:, None][:, :0]


@dataclass(frozen=True)
class Growth:
    """The published rule (decoders.md section 3): log p' = log p + beta * M * S.

    S = log p - log pbar is the gain over the weighted mean of past laws; M is 1 where p rose N times in a row.
    """

    config: PriorConfig
    betas: tuple[float, ...]

    @property
    def n_laws(self) -> int:
        """L."""
        return self.config.history

    @property
    def n_candidates(self) -> int:
        """One for each beta."""
        return len(self.betas)

    def __call__(self, p_BWV: Tensor, past_BLWV: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        c = self.config
        mean_BWV = (past_weights(past_BLWV, age_BW, c.decay) * past_BLWV).sum(1)
        gain_BWV = (p_BWV + _FLOOR).log() - (mean_BWV + _FLOOR).log()
        where_BWV = rising(p_BWV, past_BLWV, age_BW, c.rises) & among_top(p_BWV, c.top_k)
        return torch.stack([tilt(p_BWV, beta * gain_BWV, where_BWV, c.clip) for beta in self.betas], 1)


@dataclass(frozen=True)
class History:
    """Pull the law along, or against, its history: log p' = log p + b * (log p - log geometric mean of past laws).

    b below 0 pulls toward the past: what has just moved is expected to move back.
    """

    config: PriorConfig
    pulls: tuple[float, ...]

    @property
    def n_laws(self) -> int:
        """L."""
        return self.config.history

    @property
    def n_candidates(self) -> int:
        """One for each pull."""
        return len(self.pulls)

    def __call__(self, p_BWV: Tensor, past_BLWV: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        c = self.config
        past_log_BWV = (past_weights(past_BLWV, age_BW, c.decay) * (past_BLWV + _FLOOR).log()).sum(1)
        moved_BWV = (p_BWV + _FLOOR).log() - past_log_BWV
        where_BWV = among_top(p_BWV, c.top_k) & (age_BW > 0)[..., None]
        return torch.stack([tilt(p_BWV, pull * moved_BWV, where_BWV, c.clip) for pull in self.pulls], 1)


@dataclass(frozen=True)
class Plain:
    """The law itself, as one of several candidates."""

    n_laws = 0
    n_candidates = 1

    def __call__(self, p_BWV: Tensor, past_BLWV: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        return p_BWV[:, None]


@dataclass(frozen=True)
class Choice:
    """Several priors side by side; the decoding step uses, row by row, the candidate whose past forecasts were nearest."""

    priors: tuple[Plain | Growth | History, ...]

    @property
    def n_laws(self) -> int:
        """The longest history that any of them wants."""
        return max(prior.n_laws for prior in self.priors)

    @property
    def n_candidates(self) -> int:
        """All of them together."""
        return sum(prior.n_candidates for prior in self.priors)

    def __call__(self, p_BWV: Tensor, past_BLWV: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        return torch.cat([prior(p_BWV, past_BLWV, age_BW) for prior in self.priors], 1)


def make_prior(config: PriorConfig) -> NoPrior | Growth | History | Choice:
    """Build the prior that a configuration names."""
    if config.kind == "growth":
        return Growth(config, (config.beta,))
    if config.kind == "history":
        return History(config, (config.pull,))
    if config.kind == "adaptive":
        # The plain law comes first: it is the one used until another has forecast better.
        growth = Growth(config, (0.5 * config.beta, config.beta))
        return Choice((Plain(), History(config, (config.pull, 2 * config.pull)), growth))
    return NoPrior()
