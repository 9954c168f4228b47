"""The drafting rules. Each draws from exactly the distribution it is given; that distribution is stored beside the draft."""

import torch
from torch import Tensor

from sjdvp.decode.verify import probability_of
from sjdvp.rng import Noise, Purpose
from sjdvp.sampling import gumbel_sample, residual, sample


class Independent:
    """A fresh draw at every step, as in SJD (arXiv 2410.01699)."""

    def __call__(
        self,
        probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        live_BW: Tensor,
        noise: Noise,
    ) -> Tensor:
        """See `sjdvp.interfaces.Drafter`."""
        return sample(probs_BWV, noise.uniform_BW(Purpose.DRAFT))


class Coupled:
    """Keep the old draft as often as a maximal coupling of the old distribution and the new one allows (MC-SJD / SCD, arXiv 2510.24211)."""

    def __call__(
        self,
        probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        live_BW: Tensor,
        noise: Noise,
    ) -> Tensor:
        """See `sjdvp.interfaces.Drafter`. Where there is no old draft, q counts as zero and the draft is a fresh draw."""
        u_BW = noise.uniform_BW(Purpose.KEEP)
        keep_BW = live_BW & (
            u_BW * probability_of(draft_probs_BWV, draft_BW) < probability_of(probs_BWV, draft_BW)
        )
        fresh_BW = sample(
            residual(probs_BWV, draft_probs_BWV * live_BW[..., None]),
            noise.uniform_BW(Purpose.DRAFT),
        )
        return torch.where(keep_BW, draft_BW, fresh_BW)


class Gumbel:
    """argmax(log distribution + G) with noise G that stays with the position for its lifetime (SCD-GS, arXiv 2510.24211)."""

    def __call__(
        self,
        probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        live_BW: Tensor,
        noise: Noise,
    ) -> Tensor:
        """See `sjdvp.interfaces.Drafter`."""
        return gumbel_sample(probs_BWV, noise.exponential_BWV(probs_BWV.shape[-1]))
