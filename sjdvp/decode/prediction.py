"""Verification prediction (SJD-VP, arXiv 2603.27115): predict a position's next distribution.

A draft token is sampled from the predicted distribution p' instead of the last target distribution
p. p' is stored as q, so the output distribution stays exactly the model's; prediction only changes
how many draft tokens are accepted. It moves probability among the T most probable tokens of p and
leaves the rest alone, so the arithmetic is over T tokens, most probable first, and not over V.
"""

import math

import torch
from torch import Tensor

from sjdvp.config import PredictionConfig
from sjdvp.decode.distributions import Form
from sjdvp.decode.state import State, take

_FLOOR = 1e-6  # added to a probability before its logarithm: a token new in the top-k had none
_KEEP = 0.98  # of a prediction's error, one committed position later
_MARGIN = 0.01  # by which share another prediction must beat the plain distribution


def predict(
    config: PredictionConfig,
    form: Form,
    state: State,
    target_probs_BWY: Tensor,
    is_new_BW: Tensor,
    source: tuple[Tensor, Tensor],
    enters_BW: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Slide the distributions; return the predicted ones, and the changed state.

    `is_new_BW` marks the columns that were committed, `enters_BW` those that enter the window;
    their prediction has no meaning. `source` indexes the slot and the column that each column comes
    from. The result is p' [B, W, Y] and fields of `State` by name.
    """
    if config.kind == "none":
        return target_probs_BWY[source], {}
    newest_BWHY = _slide(target_probs_BWY, state.history_BWLY, source)
    age_BW = state.age_BW[source]
    p_BWY, L = newest_BWHY[:, :, 0], state.history_BWLY.shape[2]
    top_BWT = form.top(p_BWY, n_top(config, form.n_tokens))
    newest_BWHT = form.at(newest_BWHY, top_BWT[:, :, None].expand(-1, -1, L + 1, -1))
    predicted_BKWT = predictions(config, newest_BWHT.transpose(1, 2), age_BW)
    changed = {
        "history_BWLY": newest_BWHY[:, :, :L],
        "age_BW": (age_BW + 1).masked_fill(enters_BW, 0),
    }
    chosen_BWT = predicted_BKWT[:, 0]
    if n_compared(config):
        error_BK = _errors(form, state, target_probs_BWY, is_new_BW.logical_and(state.age_BW))
        chosen_BWT = _choose(predicted_BKWT, error_BK)
        changed |= {"top_BWT": top_BWT, "predicted_BKWT": predicted_BKWT, "error_BK": error_BK}
    return form.put(p_BWY, top_BWT, chosen_BWT), changed


def predictions(config: PredictionConfig, newest_BHWT: Tensor, age_BW: Tensor) -> Tensor:
    """Return the predicted distributions that a configuration compares [B, K, W, T].

    `newest_BHWT` holds the last distributions of each position at its T tokens, newest first: p and
    the L before it, of which `age_BW` exist. Each result has the mass of p over these tokens. Of
    several, p itself comes first.
    """
    trend, p_BWT = Trend(newest_BHWT, age_BW, config.decay), newest_BHWT[:, 0]
    if config.kind == "published":
        return scaled(p_BWT, [config.beta * published(trend, config.rises)], config.clip)
    moved_BWT = config.momentum * momentum(trend)
    if config.kind == "momentum":
        return scaled(p_BWT, [moved_BWT], config.clip)
    grown_BWT = config.beta * published(trend, config.rises)
    gains = [moved_BWT, 2 * moved_BWT, 0.5 * grown_BWT, grown_BWT]
    return torch.cat([p_BWT[:, None], scaled(p_BWT, gains, config.clip)], 1)


class Trend:
    """The last distributions of each position, and what all predictions from them need."""

    def __init__(self, newest_BHWT: Tensor, age_BW: Tensor, decay: float) -> None:
        """Take the arguments of `predictions`; older distributions weigh less, by `decay`."""
        self.newest_BHWT, self.age_BW = newest_BHWT, age_BW
        self.log_BHWT = (newest_BHWT + _FLOOR).log()
        lag_L = torch.arange(
            newest_BHWT.shape[1] - 1, dtype=newest_BHWT.dtype, device=age_BW.device
        )
        exists_BLW = lag_L[:, None] < age_BW[:, None]
        score_L1 = (lag_L * math.log(decay))[:, None]
        self._weight_BLW1 = torch.where(exists_BLW, score_L1, -1e9).softmax(1)[..., None]

    def mean(self, values_BHWT: Tensor) -> Tensor:
        """Return the weighted mean over the history, without the newest [B, W, T].

        It has no meaning where there is no history.
        """
        return (self._weight_BLW1 * values_BHWT[:, 1:]).sum(1)


def published(trend: Trend, rises: int) -> Tensor:
    """Return the gain M * S of log p [B, W, T] (arXiv 2603.27115, section 3).

    S = log p - log of the weighted mean of the history; M = 1 where p rose N times in a row.
    """
    gain_BWT = trend.log_BHWT[:, 0] - (trend.mean(trend.newest_BHWT) + _FLOOR).log()
    return gain_BWT * rising(trend.newest_BHWT, trend.age_BW, rises)


def momentum(trend: Trend) -> Tensor:
    """Return the gain log p - mean of log history [B, W, T].

    A factor below 0 pulls p back toward its history: what has just moved is expected to move back.
    """
    gain_BWT = trend.log_BHWT[:, 0] - trend.mean(trend.log_BHWT)
    return gain_BWT * (trend.age_BW > 0)[..., None]


def rising(newest_BHWT: Tensor, age_BW: Tensor, rises: int) -> Tensor:
    """Return where a probability rose strictly in each of the last N iterations, bool [B, W, T]."""
    rose_BNWT = newest_BHWT[:, :rises] > newest_BHWT[:, 1 : rises + 1]
    return rose_BNWT.all(1) & (age_BW >= rises)[..., None]


def scaled(p_BWT: Tensor, gains: list[Tensor], clip: float) -> Tensor:
    """Return p * exp(gain) for each gain [B, W, T], scaled to the mass of p: [B, K, W, T].

    The exponent is at most `clip` nats.
    """
    log_BKWT = p_BWT.log()[:, None] + torch.stack(gains, 1).clamp(-clip, clip)
    return log_BKWT.softmax(-1) * p_BWT.sum(-1, keepdim=True)[:, None]


def n_top(config: PredictionConfig, n_tokens: int) -> int:
    """Return how many of a distribution's `n_tokens` tokens prediction may change, T."""
    return min(config.top_k or n_tokens, n_tokens)


def n_compared(config: PredictionConfig) -> int:
    """Return how many predictions are compared, K; 0 where there is no choice."""
    return 5 if config.kind == "adaptive" else 0


def n_history(config: PredictionConfig) -> int:
    """Return how many distributions of each position are kept, L."""
    return 0 if config.kind == "none" else config.history


def _slide(probs_BWY: Tensor, history_BWLY: Tensor, source: tuple[Tensor, Tensor]) -> Tensor:
    """Return this iteration's distributions and the history before it [B, W, L+1, Y], slid.

    Put together in three dimensions: torch.compile takes a stack of distributions, which has four,
    for images and lays it out channels last.
    """
    newest_BWD = torch.cat([probs_BWY, history_BWLY.flatten(2)], -1)
    return newest_BWD[source].unflatten(-1, (-1, probs_BWY.shape[-1]))


def _errors(form: Form, state: State, target_probs_BWY: Tensor, counts_BW: Tensor) -> Tensor:
    """Update the running distance (L1) of each prediction from the distribution that came [B, K].

    Only positions committed now count: the choice for a later position never depends on that
    position's own draft. Predictions differ at the T tokens alone, so the distance is taken there.
    """
    came_B1WT = form.at(target_probs_BWY, state.top_BWT)[:, None]
    missed_BKWT = (state.predicted_BKWT - came_B1WT) * counts_BW[:, None, :, None]
    missed_BK = torch.linalg.vector_norm(missed_BKWT, 1, (-1, -2))
    n_counted_B1 = counts_BW.sum(-1, keepdim=True, dtype=missed_BK.dtype)
    return torch.addcmul(missed_BK, state.error_BK, _KEEP**n_counted_B1)


def _choose(predicted_BKWT: Tensor, error_BK: Tensor) -> Tensor:
    """Return each sequence's prediction with the least error [B, W, T].

    It is the first, plain one, unless another is better by a margin.
    """
    plain_B1, other_BK = error_BK[:, :1] * (1 - _MARGIN), error_BK[:, 1:]
    return take(predicted_BKWT, torch.cat([plain_B1, other_BK], 1).argmin(-1))
