"""The laws that the next draft could be drawn from, side by side, each with a name: likelihood, prior, and fusions of the two."""

from dataclasses import dataclass

from torch import Tensor

from sjdvp.config import PriorConfig
from sjdvp.decode.prior import Choice, Growth, History, Plain
from sjdvp.diagnose.names import BETAS, PULLS


@dataclass(frozen=True)
class GainOnly:
    """log p' = M * S among the top codes: what the growth rule adds to a law, without the law. See `sjdvp.interfaces.Prior`."""

    growth: Growth
    n_candidates = 1

    @property
    def n_laws(self) -> int:
        """As many as the gain needs."""
        return self.growth.n_laws

    def __call__(self, p_BWT: Tensor, past_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Prior`."""
        gain_B1WT = self.growth(p_BWT, past_BLWT, age_BW) / p_BWT.clamp(min=1e-30)[:, None]
        return gain_B1WT * (p_BWT.sum(-1, keepdim=True)[:, None] / gain_B1WT.sum(-1, keepdim=True).clamp(min=1e-30))


def candidates(config: PriorConfig) -> Choice:
    """Return what `sjdvp.diagnose.names.CANDIDATES` names, with the history, decay, rises and clip of a configuration."""
    return Choice((Plain(), Growth(config, BETAS), History(config, PULLS), GainOnly(Growth(config, (1.0,)))))
