"""The lossless verifiers: how many drafts of a window stand, and what follows them."""

from torch import Tensor

from sjdvp.decode.state import take
from sjdvp.interfaces import Verdict
from sjdvp.rng import Noise, Purpose
from sjdvp.sampling import gumbel_sample, residual, sample


def prefix(keep_BW: Tensor) -> Tensor:
    """Return the length of the run of True at the start of each row [B]."""
    return keep_BW.long().cumprod(-1).sum(-1)


def probability_of(target_probs_BWV: Tensor, token_BW: Tensor) -> Tensor:
    """Return target_probs_BWV at the given tokens [B, W]."""
    return target_probs_BWV.gather(-1, token_BW[..., None]).squeeze(-1)


def resample(
    p_BV: Tensor, draft_probs_BWV: Tensor, live_BW: Tensor, accepted_B: Tensor, noise: Noise
) -> Tensor:
    """Draw what follows the drafts that stand [B], from (p - q)+ normalised; where there was no draft, q counts as zero."""
    q_BV = take(draft_probs_BWV, accepted_B) * take(live_BW, accepted_B)[:, None]
    return sample(residual(p_BV, q_BV), take(noise.uniform_BW(Purpose.RESAMPLE), accepted_B))


class RejectionSampling:
    """Speculative sampling (arXiv 2211.17192): keep x with probability min(1, p(x)/q(x)), else draw from (p - q)+ normalised.

    In a column without a draft (the bonus, or past the end of the image) q counts as zero, so the resample is a draw from p.
    """

    lossless = True

    def __call__(
        self,
        target_probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        live_BW: Tensor,
        noise: Noise,
    ) -> Verdict:
        """See `sjdvp.interfaces.Verifier`."""
        u_BW = noise.uniform_BW(Purpose.ACCEPT)
        accepted_B = prefix(
            live_BW
            & (
                u_BW * probability_of(draft_probs_BWV, draft_BW)
                < probability_of(target_probs_BWV, draft_BW)
            )
        )
        return Verdict(
            accepted_B,
            resample(
                take(target_probs_BWV, accepted_B), draft_probs_BWV, live_BW, accepted_B, noise
            ),
        )


class SameNoise:
    """Keep x where it is what the model draws with the position's fixed noise (arXiv 2002.09928): argmax(log p + Gumbel).

    The committed tokens are, token for token, the plain autoregressive sample of the same seed, whatever was drafted.
    """

    lossless = True

    def __call__(
        self,
        target_probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        live_BW: Tensor,
        noise: Noise,
    ) -> Verdict:
        """See `sjdvp.interfaces.Verifier`; the stored distributions are not needed."""
        choice_BW = gumbel_sample(
            target_probs_BWV, noise.exponential_BWV(target_probs_BWV.shape[-1])
        )
        accepted_B = prefix(live_BW & (choice_BW == draft_BW))
        return Verdict(accepted_B, take(choice_BW, accepted_B))
