"""The relaxed verifiers: more drafts stand, and the images no longer follow exactly the model's distribution. Labelled so everywhere.

Both replace only the test of a draft. A coupled drafter keeps its tail by the exact rule, so only what is committed is relaxed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sjdvp.config import RelaxConfig
from sjdvp.decode.state import take
from sjdvp.decode.verify import prefix, probability_of, resample
from sjdvp.interfaces import Verdict
from sjdvp.rng import Noise, Purpose


@dataclass(frozen=True)
class Lantern:
    """Codes that forward_pass alike lend their probability (LANTERN, arXiv 2410.03355; LANTERN++, arXiv 2502.06352).

    x stands with probability min(1, (p(x) + lent)/q(x)), where `lent` is the probability of the tokens nearest to x, in order of
    distance, as long as their sum stays within the budget: delta, or scale * p(x) when scale is above 0. The resample is drawn
    from (p - q)+ after x and the tokens that lent have been struck from p.
    """

    lossless = False
    config: RelaxConfig
    near_VK: Tensor  # the nearest tokens of each code, nearest first, itself left out

    def __call__(
        self,
        target_probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        live_BW: Tensor,
        noise: Noise,
    ) -> Verdict:
        """See `sjdvp.interfaces.Verifier`."""
        near_BWK = self.near_VK[draft_BW]
        p_BWK = target_probs_BWV.gather(-1, near_BWK)
        p_x_BW = probability_of(target_probs_BWV, draft_BW)
        budget_BW = (
            self.config.scale * p_x_BW
            if self.config.scale > 0
            else torch.full_like(p_x_BW, self.config.delta)
        )
        lends_BWK = p_BWK.cumsum(-1) <= budget_BW[..., None]
        lent_BW = (p_BWK * lends_BWK).sum(-1)
        u_BW = noise.uniform_BW(Purpose.ACCEPT)
        accepted_B = prefix(
            live_BW & (u_BW * probability_of(draft_probs_BWV, draft_BW) < p_x_BW + lent_BW)
        )

        live_B1 = take(live_BW, accepted_B)[:, None]
        p_BV = take(target_probs_BWV, accepted_B)
        struck_BV = p_BV.scatter(1, take(draft_BW, accepted_B)[:, None], 0.0)
        lent_BK = take(p_BWK, accepted_B).masked_fill(take(lends_BWK, accepted_B), 0.0)
        struck_BV = struck_BV.scatter(1, take(near_BWK, accepted_B), lent_BK)
        # Where a draft was rejected with all of p struck, or where there was no draft, the draw is from p itself.
        kept_BV = torch.where(live_B1 & (struck_BV.sum(-1, keepdim=True) > 0), struck_BV, p_BV)
        return Verdict(accepted_B, resample(kept_BV, draft_probs_BWV, live_BW, accepted_B, noise))


@dataclass(frozen=True)
class Gsd:
    """Codes that are alike are tested as one (GSD, arXiv 2508.07747).

    x stands with probability min(1, p(C)/q(C)), where C holds x and those of the tokens next to it in rank of p that are as probable
    (within delta) and as alike (codebook distance below `distance`). The resample is drawn from the plain (p - q)+.
    """

    lossless = False
    config: RelaxConfig
    codebook_VE: Tensor

    def __call__(
        self,
        target_probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        live_BW: Tensor,
        noise: Noise,
    ) -> Verdict:
        """See `sjdvp.interfaces.Verifier`."""
        p_x_BW = probability_of(target_probs_BWV, draft_BW)
        sorted_BWV, token_BWV = target_probs_BWV.sort(-1, descending=True)
        rank_BW1 = (token_BWV == draft_BW[..., None]).to(torch.int8).argmax(-1, keepdim=True)
        kv_bucket = self.config.group // 2
        place_BWG = rank_BW1 + torch.arange(-kv_bucket, kv_bucket + 1, device=rank_BW1.device)
        inside_BWG = (place_BWG >= 0) & (place_BWG < target_probs_BWV.shape[-1])
        place_BWG = place_BWG.clamp(0, target_probs_BWV.shape[-1] - 1)
        p_BWG, token_BWG = sorted_BWV.gather(-1, place_BWG), token_BWV.gather(-1, place_BWG)
        apart_BWG = (self.codebook_VE[token_BWG] - self.codebook_VE[draft_BW][..., None, :]).norm(
            dim=-1
        )
        alike_BWG = (
            inside_BWG
            & ((p_BWG - p_x_BW[..., None]).abs() < self.config.delta)
            & (apart_BWG < self.config.distance)
        )
        in_group_BWG = alike_BWG | (token_BWG == draft_BW[..., None]) & inside_BWG
        p_group_BW = (p_BWG * in_group_BWG).sum(-1)
        q_group_BW = (draft_probs_BWV.gather(-1, token_BWG) * in_group_BWG).sum(-1)
        accepted_B = prefix(live_BW & (noise.uniform_BW(Purpose.ACCEPT) * q_group_BW < p_group_BW))
        return Verdict(
            accepted_B,
            resample(
                take(target_probs_BWV, accepted_B), draft_probs_BWV, live_BW, accepted_B, noise
            ),
        )


def nearest(codebook_VE: Tensor, k: int, chunk: int = 1024) -> Tensor:
    """Return the k tokens nearest to each code [V, min(k, V - 1)], nearest first, itself left out; ties go to the lower code."""
    vocab_size = codebook_VE.shape[0]
    rows = []
    for first in range(0, vocab_size, chunk):
        distance_NV = torch.cdist(
            codebook_VE[first : first + chunk],
            codebook_VE,
            compute_mode="donot_use_mm_for_euclid_dist",
        )
        distance_NV[
            torch.arange(len(distance_NV)), torch.arange(first, first + len(distance_NV))
        ] = float("inf")
        rows.append(distance_NV.sort(stable=True, dim=-1).indices[:, : min(k, vocab_size - 1)])
    return torch.cat(rows)
