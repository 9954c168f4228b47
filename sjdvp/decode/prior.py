"""Verification prediction (SJD-VP, arXiv 2603.27115): from the laws a position has seen to the law its next draft is drawn from.

The predicted law is stored as q, so the committed law stays exactly the model's; prediction only changes how often drafts pass.
It moves probability among the T most probable codes of a law and leaves the rest of the law alone, so all arithmetic here is over T
codes and not over V. Suffix T: those codes, most probable first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sjdvp.config import PriorConfig
from sjdvp.interfaces import Prior

_FLOOR = 1e-6  # added to a probability before its logarithm: a code that has just entered the top-k has had none


def past_weights(past_BLWT: Tensor, age_BW: Tensor, decay: float) -> Tensor:
    """Return the weight of each past law [B, L, W, 1]: decay^(l-1), zero where it does not exist, summing to one where any does."""
    lag_L = torch.arange(past_BLWT.shape[1], device=age_BW.device)
    weight_BLW = (lag_L[:, None] < age_BW[:, None, :]) * (decay ** lag_L.to(past_BLWT.dtype))[:, None]
    return (weight_BLW / weight_BLW.sum(1, keepdim=True).clamp(min=1e-12))[..., None]


def rising(p_BWT: Tensor, past_BLWT: Tensor, age_BW: Tensor, rises: int) -> Tensor:
    """Return where a probability rose strictly at each of the last `rises` steps [B, W, T]."""
    newer_BLWT = torch.cat([p_BWT[:, None], past_BLWT[:, : rises - 1]], 1)
    return (newer_BLWT > past_BLWT[:, :rises]).all(1) & (age_BW >= rises)[..., None]


def tilt(p_BWT: Tensor, gain_BWT: Tensor, factors: tuple[float, ...], clip: float) -> Tensor:
    """Return p * exp(factor * gain) for each factor [B, K, W, T], scaled to the mass of p; an exponent is at most `clip` nats."""
    gain_BKWT = torch.stack([factor * gain_BWT for factor in factors], 1)
    tilted_BKWT = p_BWT[:, None] * gain_BKWT.clamp(-clip, clip).exp()
    mass_B1W1 = p_BWT.sum(-1, keepdim=True)[:, None]
    return tilted_BKWT * (mass_B1W1 / tilted_BKWT.sum(-1, keepdim=True).clamp(min=1e-30))


@dataclass(frozen=True)
class NoPrior:
    """No prediction: drafts are drawn from the plain law."""

    n_laws = 0
    n_candidates = 0

    def __call__(self, p_BWT: Tensor, past_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        return p_BWT[:, None][:, :0]


@dataclass(frozen=True)
class Plain:
    """The law itself, as one of several candidates."""

    n_laws = 0
    n_candidates = 1

    def __call__(self, p_BWT: Tensor, past_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        return p_BWT[:, None]


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

    def __call__(self, p_BWT: Tensor, past_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        c = self.config
        mean_BWT = (past_weights(past_BLWT, age_BW, c.decay) * past_BLWT).sum(1)
        gain_BWT = ((p_BWT + _FLOOR) / (mean_BWT + _FLOOR)).log() * rising(p_BWT, past_BLWT, age_BW, c.rises)
        return tilt(p_BWT, gain_BWT, self.betas, c.clip)


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

    def __call__(self, p_BWT: Tensor, past_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        c = self.config
        past_log_BWT = (past_weights(past_BLWT, age_BW, c.decay) * (past_BLWT + _FLOOR).log()).sum(1)
        moved_BWT = ((p_BWT + _FLOOR).log() - past_log_BWT) * (age_BW > 0)[..., None]
        return tilt(p_BWT, moved_BWT, self.pulls, c.clip)


@dataclass(frozen=True)
class Choice:
    """Several priors side by side; the decoding step uses, row by row, the candidate whose past forecasts were nearest."""

    priors: tuple[Prior, ...]

    @property
    def n_laws(self) -> int:
        """The longest history that any of them wants."""
        return max(prior.n_laws for prior in self.priors)

    @property
    def n_candidates(self) -> int:
        """All of them together."""
        return sum(prior.n_candidates for prior in self.priors)

    def __call__(self, p_BWT: Tensor, past_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        return torch.cat([prior(p_BWT, past_BLWT, age_BW) for prior in self.priors], 1)


def make_prior(config: PriorConfig) -> Prior:
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
