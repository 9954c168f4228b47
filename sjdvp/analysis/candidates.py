"""The distributions that the next draft could be drawn from, side by side, each with a name: likelihood, prediction, and fusions of the two."""

from dataclasses import dataclass

from torch import Tensor

from sjdvp.analysis.metrics import BETAS, MOMENTA
from sjdvp.config import PredictionConfig
from sjdvp.decode.prediction import Choice, Growth, History, Plain


@dataclass(frozen=True)
class GainOnly:
    """log p' = M * S among the top tokens: what the growth rule adds to a distribution, without the distribution. See `sjdvp.interfaces.Predictor`."""

    growth: Growth
    n_predictions = 1

    @property
    def history_length(self) -> int:
        """As many as the gain needs."""
        return self.growth.history_length

    def __call__(self, target_probs_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Predictor`."""
        gain_B1WT = (
            self.growth(target_probs_BWT, history_BLWT, age_BW)
            / target_probs_BWT.clamp(min=1e-30)[:, None]
        )
        return gain_B1WT * (
            target_probs_BWT.sum(-1, keepdim=True)[:, None]
            / gain_B1WT.sum(-1, keepdim=True).clamp(min=1e-30)
        )


def candidates(config: PredictionConfig) -> Choice:
    """Return what `sjdvp.analysis.metrics.CANDIDATES` names, with the history, decay, rises and clip of a configuration."""
    return Choice(
        (Plain(), Growth(config, BETAS), History(config, MOMENTA), GainOnly(Growth(config, (1.0,))))
    )
