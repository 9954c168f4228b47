"""The distributions that the next draft token could be sampled from, side by side.

`sjdvp.analysis.metrics.CANDIDATES` names them: likelihood, prediction, and both together.
"""

import torch
from torch import Tensor

from sjdvp.analysis.metrics import BETAS, MOMENTA
from sjdvp.config import PredictionConfig
from sjdvp.decode.prediction import momentum, published


def candidates(
    config: PredictionConfig, p_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor
) -> Tensor:
    """Return all candidates [B, K, W, T], with the decay, rises and clip of a configuration.

    The arguments are those of `sjdvp.decode.prediction.predictions`.
    """
    grown_BKWT = published(config, BETAS, p_BWT, history_BLWT, age_BW)
    moved_BKWT = momentum(config, MOMENTA, p_BWT, history_BLWT, age_BW)
    gain_B1WT = _gain_only(config, p_BWT, history_BLWT, age_BW)
    return torch.cat([p_BWT[:, None], grown_BKWT, moved_BKWT, gain_B1WT], 1)


def _gain_only(
    config: PredictionConfig, p_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor
) -> Tensor:
    """Return log p' = M * S: what the published rule adds to p, without p itself [B, 1, W, T]."""
    grown_B1WT = published(config, (1.0,), p_BWT, history_BLWT, age_BW)
    gain_B1WT = grown_B1WT / p_BWT.clamp(min=1e-30)[:, None]
    mass_B1W1 = p_BWT.sum(-1, keepdim=True)[:, None]
    return gain_B1WT * (mass_B1W1 / gain_B1WT.sum(-1, keepdim=True).clamp(min=1e-30))
