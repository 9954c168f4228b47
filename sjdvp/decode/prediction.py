"""Verification prediction (SJD-VP, arXiv 2603.27115): predict a position's next distribution.

A draft token is sampled from the predicted distribution p' instead of the last target distribution
p. p' is stored as q, so the output distribution stays exactly the model's; prediction only changes
how many draft tokens are accepted. It moves probability among the T most probable tokens of p and
leaves the rest alone, so the arithmetic is over T tokens, most probable first, and not over V.
"""

import torch
from torch import Tensor

from sjdvp.config import PredictionConfig
from sjdvp.decode.state import State, pick
from sjdvp.sampling import total_variation

_FLOOR = 1e-6  # added to a probability before its logarithm: a token new in the top-k had none
_KEEP = 0.98  # of a prediction's error, one committed position later
_MARGIN = 0.01  # by which share another prediction must beat the plain distribution


def predict(
    config: PredictionConfig,
    state: State,
    target_probs_BWV: Tensor,
    is_new_BW: Tensor,
    source_BW: Tensor,
    enters_BW: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Slide the distributions by `source_BW`; return the predicted ones, and the changed state.

    `is_new_BW` marks the columns that were committed, `enters_BW` those that enter the window;
    their
    prediction has no meaning. The result is p' [B, W, V] and fields of `State` by name.
    """
    if config.kind == "none":
        return pick(target_probs_BWV, source_BW), {}
    newest_BLWV = _slide(target_probs_BWV, state.history_BLWV, source_BW)
    age_BW = state.age_BW.gather(1, source_BW)
    p_BWV, L = newest_BLWV[:, 0], state.history_BLWV.shape[1]
    p_BWT, top_BWT = p_BWV.topk(n_top(config, p_BWV.shape[-1]), dim=-1)
    history_BLWT = newest_BLWV[:, 1:].gather(-1, top_BWT[:, None].expand(-1, L, -1, -1))
    predicted_BKWT = predictions(config, p_BWT, history_BLWT, age_BW)
    changed = {
        "history_BLWV": newest_BLWV[:, :L],
        "age_BW": torch.where(enters_BW, 0, (age_BW + 1).clamp(max=L)),
    }
    chosen_BWT = predicted_BKWT[:, 0]
    if n_compared(config):
        error_BK = _errors(state, target_probs_BWV, is_new_BW & (state.age_BW > 0))
        chosen_BWT = _choose(predicted_BKWT, error_BK)
        changed |= {"top_BWT": top_BWT, "predicted_BKWT": predicted_BKWT, "error_BK": error_BK}
    return p_BWV.scatter(-1, top_BWT, chosen_BWT), changed


def predictions(
    config: PredictionConfig, p_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor
) -> Tensor:
    """Return the predicted distributions that a configuration compares [B, K, W, T].

    Each has the mass of p over the T tokens. `age_BW` says how many of the L distributions in
    `history_BLWT` exist. Of several, the plain distribution comes first.
    """
    if config.kind == "published":
        return published(config, (config.beta,), p_BWT, history_BLWT, age_BW)
    if config.kind == "momentum":
        return momentum(config, (config.momentum,), p_BWT, history_BLWT, age_BW)
    factors, betas = (config.momentum, 2 * config.momentum), (0.5 * config.beta, config.beta)
    moved_BKWT = momentum(config, factors, p_BWT, history_BLWT, age_BW)
    grown_BKWT = published(config, betas, p_BWT, history_BLWT, age_BW)
    return torch.cat([p_BWT[:, None], moved_BKWT, grown_BKWT], 1)


def published(
    config: PredictionConfig,
    betas: tuple[float, ...],
    p_BWT: Tensor,
    history_BLWT: Tensor,
    age_BW: Tensor,
) -> Tensor:
    """Return log p' = log p + beta * M * S per beta [B, K, W, T] (arXiv 2603.27115, section 3).

    S = log p - log of the weighted mean of the history; M = 1 where p rose N times in a row.
    """
    mean_BWT = (_weights(history_BLWT, age_BW, config.decay) * history_BLWT).sum(1)
    gain_BWT = ((p_BWT + _FLOOR) / (mean_BWT + _FLOOR)).log()
    rose_BWT = rising(p_BWT, history_BLWT, age_BW, config.rises)
    return _moved(p_BWT, gain_BWT * rose_BWT, betas, config.clip)


def momentum(
    config: PredictionConfig,
    factors: tuple[float, ...],
    p_BWT: Tensor,
    history_BLWT: Tensor,
    age_BW: Tensor,
) -> Tensor:
    """Return log p' = log p + factor * (log p - mean of log history) for each factor [B, K, W, T].

    A factor below 0 pulls p back toward its history: what has just moved is expected to move back.
    """
    log_BLWT = (history_BLWT + _FLOOR).log()
    mean_BWT = (_weights(history_BLWT, age_BW, config.decay) * log_BLWT).sum(1)
    gain_BWT = ((p_BWT + _FLOOR).log() - mean_BWT) * (age_BW > 0)[..., None]
    return _moved(p_BWT, gain_BWT, factors, config.clip)


def rising(p_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor, rises: int) -> Tensor:
    """Return where a probability rose strictly in each of the last N iterations, bool [B, W, T]."""
    newer_BLWT = torch.cat([p_BWT[:, None], history_BLWT[:, : rises - 1]], 1)
    return (newer_BLWT > history_BLWT[:, :rises]).all(1) & (age_BW >= rises)[..., None]


def n_top(config: PredictionConfig, vocab_size: int) -> int:
    """Return how many tokens of a distribution prediction may change, T."""
    return min(config.top_k or vocab_size, vocab_size)


def n_compared(config: PredictionConfig) -> int:
    """Return how many predictions are compared, K; 0 where there is no choice."""
    return 5 if config.kind == "adaptive" else 0


def n_history(config: PredictionConfig) -> int:
    """Return how many distributions of each position are kept, L."""
    return 0 if config.kind == "none" else config.history


def _slide(probs_BWV: Tensor, history_BLWV: Tensor, source_BW: Tensor) -> Tensor:
    """Return this iteration's distributions and the history before it [B, L+1, W, V], slid.

    Put together in three dimensions: torch.compile takes a stack of distributions, which has four,
    for images and lays it out channels last.
    """
    (B, L), (W, V) = history_BLWV.shape[:2], probs_BWV.shape[1:]
    newest = torch.cat([probs_BWV, history_BLWV.flatten(1, 2)], 1)
    return pick(newest.view(B, L + 1, W, V), source_BW, 2)


def _weights(history_BLWT: Tensor, age_BW: Tensor, decay: float) -> Tensor:
    """Return the weight of each past distribution, decay^(l-1), summing to one [B, L, W, 1].

    It is zero where the distribution does not exist, and everywhere if none does.
    """
    lag_L = torch.arange(history_BLWT.shape[1], device=age_BW.device)
    decay_L1 = (decay ** lag_L.to(history_BLWT.dtype))[:, None]
    weight_BLW = (lag_L[:, None] < age_BW[:, None, :]) * decay_L1
    return (weight_BLW / weight_BLW.sum(1, keepdim=True).clamp(min=1e-12))[..., None]


def _moved(p_BWT: Tensor, gain_BWT: Tensor, factors: tuple[float, ...], clip: float) -> Tensor:
    """Return p * exp(factor * gain) for each factor [B, K, W, T], scaled to the mass of p.

    The exponent is at most `clip` nats.
    """
    gain_BKWT = torch.stack([factor * gain_BWT for factor in factors], 1)
    moved_BKWT = p_BWT[:, None] * gain_BKWT.clamp(-clip, clip).exp()
    mass_B1W1 = p_BWT.sum(-1, keepdim=True)[:, None]
    return moved_BKWT * (mass_B1W1 / moved_BKWT.sum(-1, keepdim=True).clamp(min=1e-30))


def _errors(state: State, target_probs_BWV: Tensor, counts_BW: Tensor) -> Tensor:
    """Update the running distance between each prediction and the distribution that came [B, K].

    Only positions committed now count: the choice for a later position never depends on that
    position's own draft. Predictions differ at the T tokens alone, so the distance is taken there.
    """
    came_BWT = target_probs_BWV.gather(-1, state.top_BWT)
    apart_BKW = total_variation(state.predicted_BKWT, came_BWT[:, None])
    missed_BK = (apart_BKW * counts_BW[:, None]).sum(-1)
    return state.error_BK * _KEEP ** counts_BW.sum(-1, keepdim=True).to(missed_BK.dtype) + missed_BK


def _choose(predicted_BKWT: Tensor, error_BK: Tensor) -> Tensor:
    """Return each sequence's prediction with the least error [B, W, T].

    It is the first, plain one, unless another is better by a margin.
    """
    handicap_K = torch.ones_like(error_BK[0])
    handicap_K[0] = 1 - _MARGIN
    return pick(predicted_BKWT, (error_BK * handicap_K).argmin(-1, keepdim=True)).squeeze(1)
