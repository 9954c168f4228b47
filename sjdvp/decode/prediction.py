"""Verification prediction (SJD-VP, arXiv 2603.27115): from the distributions a position has seen to the distribution its next draft is drawn from.

The predicted distribution is stored as q, so the committed distribution stays exactly the model's; prediction only changes how often drafts pass.
It moves probability among the T most probable tokens of a distribution and leaves the rest of the distribution alone, so all arithmetic here is over T
tokens and not over V. Suffix T: those tokens, most probable first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sjdvp.config import PredictionConfig
from sjdvp.interfaces import Predictor

_FLOOR = 1e-6  # added to a probability before its logarithm: a code that has just entered the top-k has had none


def past_weights(history_BLWT: Tensor, age_BW: Tensor, decay: float) -> Tensor:
    """Return the weight of each past distribution [B, L, W, 1]: decay^(l-1), zero where it does not exist, summing to one where any does."""
    lag_L = torch.arange(history_BLWT.shape[1], device=age_BW.device)
    weight_BLW = (lag_L[:, None] < age_BW[:, None, :]) * (decay ** lag_L.to(history_BLWT.dtype))[
        :, None
    ]
    return (weight_BLW / weight_BLW.sum(1, keepdim=True).clamp(min=1e-12))[..., None]


def rising(target_probs_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor, rises: int) -> Tensor:
    """Return where a probability rose strictly at each of the last `rises` steps [B, W, T]."""
    newer_BLWT = torch.cat([target_probs_BWT[:, None], history_BLWT[:, : rises - 1]], 1)
    return (newer_BLWT > history_BLWT[:, :rises]).all(1) & (age_BW >= rises)[..., None]


def tilt(
    target_probs_BWT: Tensor, gain_BWT: Tensor, factors: tuple[float, ...], clip: float
) -> Tensor:
    """Return p * exp(factor * gain) for each factor [B, K, W, T], scaled to the mass of p; an exponent is at most `clip` nats."""
    gain_BKWT = torch.stack([factor * gain_BWT for factor in factors], 1)
    tilted_BKWT = target_probs_BWT[:, None] * gain_BKWT.clamp(-clip, clip).exp()
    mass_B1W1 = target_probs_BWT.sum(-1, keepdim=True)[:, None]
    return tilted_BKWT * (mass_B1W1 / tilted_BKWT.sum(-1, keepdim=True).clamp(min=1e-30))


@dataclass(frozen=True)
class NoPrediction:
    """No prediction: drafts are drawn from the plain distribution."""

    history_length = 0
    n_predictions = 0

    def __call__(self, target_probs_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Predictor`."""
        return target_probs_BWT[:, None][:, :0]


@dataclass(frozen=True)
class Plain:
    """The distribution itself, as one of several candidates."""

    history_length = 0
    n_predictions = 1

    def __call__(self, target_probs_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Predictor`."""
        return target_probs_BWT[:, None]


@dataclass(frozen=True)
class Growth:
    """The published rule (decoders.md section 3): log p' = log p + beta * M * S.

    S = log p - log pbar is the gain over the weighted mean of past distributions; M is 1 where p rose N times in a row.
    """

    config: PredictionConfig
    betas: tuple[float, ...]

    @property
    def history_length(self) -> int:
        """L."""
        return self.config.history

    @property
    def n_predictions(self) -> int:
        """One for each beta."""
        return len(self.betas)

    def __call__(self, target_probs_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Predictor`."""
        c = self.config
        mean_BWT = (past_weights(history_BLWT, age_BW, c.decay) * history_BLWT).sum(1)
        gain_BWT = ((target_probs_BWT + _FLOOR) / (mean_BWT + _FLOOR)).log() * rising(
            target_probs_BWT, history_BLWT, age_BW, c.rises
        )
        return tilt(target_probs_BWT, gain_BWT, self.betas, c.clip)


@dataclass(frozen=True)
class History:
    """Pull the distribution along, or against, its history: log p' = log p + b * (log p - log geometric mean of past distributions).

    b below 0 pulls toward the past: what has just moved is expected to move back.
    """

    config: PredictionConfig
    pulls: tuple[float, ...]

    @property
    def history_length(self) -> int:
        """L."""
        return self.config.history

    @property
    def n_predictions(self) -> int:
        """One for each pull."""
        return len(self.pulls)

    def __call__(self, target_probs_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Predictor`."""
        c = self.config
        past_log_BWT = (
            past_weights(history_BLWT, age_BW, c.decay) * (history_BLWT + _FLOOR).log()
        ).sum(1)
        moved_BWT = ((target_probs_BWT + _FLOOR).log() - past_log_BWT) * (age_BW > 0)[..., None]
        return tilt(target_probs_BWT, moved_BWT, self.pulls, c.clip)


@dataclass(frozen=True)
class Choice:
    """Several predictions side by side; the decoding step uses, row by row, the candidate whose past forecasts were nearest."""

    predictions: tuple[Predictor, ...]

    @property
    def history_length(self) -> int:
        """The longest history that any of them wants."""
        return max(prediction.history_length for prediction in self.predictions)

    @property
    def n_predictions(self) -> int:
        """All of them together."""
        return sum(prediction.n_predictions for prediction in self.predictions)

    def __call__(self, target_probs_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Predictor`."""
        return torch.cat(
            [prediction(target_probs_BWT, history_BLWT, age_BW) for prediction in self.predictions],
            1,
        )


def make_predictor(config: PredictionConfig) -> Predictor:
    """Build the prediction that a configuration names."""
    if config.kind == "published":
        return Growth(config, (config.beta,))
    if config.kind == "momentum":
        return History(config, (config.momentum,))
    if config.kind == "adaptive":
        # The plain distribution comes first: it is the one used until another has forecast better.
        growth = Growth(config, (0.5 * config.beta, config.beta))
        return Choice((Plain(), History(config, (config.momentum, 2 * config.momentum)), growth))
    return NoPrediction()
