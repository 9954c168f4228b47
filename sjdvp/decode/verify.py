"""Verification: how many draft tokens of a window are accepted, and the token that follows them.

`RejectionSampling` and `SameNoise` are lossless. `Lantern` and `Gsd` are relaxed: they accept
more draft tokens, and the output distribution is no longer exactly the model's. They replace only
the test of a draft token; a coupled drafter keeps its drafts by the exact rule all the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sjdvp.config import DecoderConfig, RelaxConfig
from sjdvp.decode.distributions import Form, probability_of
from sjdvp.decode.state import take
from sjdvp.interfaces import Verdict, Verifier
from sjdvp.rng import Noise, Purpose
from sjdvp.sampling import keeps, running_sum


@dataclass(frozen=True)
class RejectionSampling:
    """Accept x with probability min(1, p(x)/q(x)), else sample (p - q)+ normalised.

    Speculative sampling, arXiv 2211.17192. The bonus token is sampled from p: q counts as zero in
    the last column.
    """

    form: Form

    def __call__(
        self,
        target_probs_BWY: Tensor,
        draft_probs_BWY: Tensor,
        draft_BW: Tensor,
        noise: Noise,
    ) -> Verdict:
        """See `sjdvp.interfaces.Verifier`."""
        p_BW = probability_of(self.form, target_probs_BWY, draft_BW)
        q_BW = probability_of(self.form, draft_probs_BWY, draft_BW)
        accepted_B = n_leading(keeps(p_BW, q_BW, noise.ticks_BW(Purpose.ACCEPT)))
        p_BY = take(target_probs_BWY, accepted_B)
        return Verdict(accepted_B, resample(self.form, p_BY, draft_probs_BWY, accepted_B, noise))


@dataclass(frozen=True)
class SameNoise:
    """Accept x where it is the model's own Gumbel-max sample with the position's fixed noise.

    arXiv 2002.09928. The committed tokens are, token for token, the autoregressive sample of the
    same seed, whatever was drafted; q is not used.
    """

    form: Form

    def __call__(
        self,
        target_probs_BWY: Tensor,
        draft_probs_BWY: Tensor,
        draft_BW: Tensor,
        noise: Noise,
    ) -> Verdict:
        """See `sjdvp.interfaces.Verifier`."""
        token_BW = self.form.gumbel_sample(target_probs_BWY, noise)
        accepted_B = n_leading(token_BW == draft_BW)
        return Verdict(accepted_B, take(token_BW, accepted_B))


@dataclass(frozen=True)
class Lantern:
    """LANTERN (arXiv 2410.03355) and LANTERN++ (arXiv 2502.06352): neighbours lend probability.

    Accept x with probability min(1, (p(x) + lent)/q(x)). `lent` is the probability of the tokens
    nearest to x, in order of distance, while their sum stays within the budget: delta, or
    scale * p(x) when scale is above 0. On a rejection, x and the tokens that lent are set to zero
    in p before (p - q)+ is sampled.
    """

    form: Form  # dense: any token may lend or be in a cluster
    config: RelaxConfig
    neighbours_VM: Tensor  # the M nearest tokens of each token, nearest first, itself left out

    def __call__(
        self,
        target_probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        noise: Noise,
    ) -> Verdict:
        """See `sjdvp.interfaces.Verifier`."""
        near_BWM = self.neighbours_VM[draft_BW]
        near_p_BWM = target_probs_BWV.gather(-1, near_BWM)
        p_BW = probability_of(self.form, target_probs_BWV, draft_BW)
        delta_BW = torch.full_like(p_BW, self.config.delta)
        budget_BW = self.config.scale * p_BW if self.config.scale > 0 else delta_BW
        lends_BWM = running_sum(near_p_BWM) <= running_sum(budget_BW[..., None])
        lent_BW = (near_p_BWM * lends_BWM).sum(-1)
        q_BW = probability_of(self.form, draft_probs_BWV, draft_BW)
        ticks_BW = noise.ticks_BW(Purpose.ACCEPT)
        accepted_B = n_leading(keeps(p_BW + lent_BW, q_BW, ticks_BW))

        p_BV = take(target_probs_BWV, accepted_B)
        rest_BV = p_BV.scatter(1, take(draft_BW, accepted_B)[:, None], 0.0)
        near_p_BM = take(near_p_BWM, accepted_B).masked_fill(take(lends_BWM, accepted_B), 0.0)
        rest_BV = rest_BV.scatter(1, take(near_BWM, accepted_B), near_p_BM)
        # Without a draft token, or with nothing left of p, p itself is sampled.
        was_rejected_B1 = (accepted_B < draft_BW.shape[1] - 1)[:, None]
        usable_B1 = was_rejected_B1 & (rest_BV.sum(-1, keepdim=True) > 0)
        p_BV = torch.where(usable_B1, rest_BV, p_BV)
        return Verdict(accepted_B, resample(self.form, p_BV, draft_probs_BWV, accepted_B, noise))


@dataclass(frozen=True)
class Gsd:
    """Grouped speculative decoding (GSD, arXiv 2508.07747): similar tokens are tested as one.

    Accept x with probability min(1, p(C)/q(C)). The cluster C holds x and those of the G tokens
    around x in rank of p whose probability differs by less than `delta` and whose codebook vector
    is nearer than `distance`. On a rejection, the plain (p - q)+ is sampled.
    """

    form: Form  # dense: any token may lend or be in a cluster
    config: RelaxConfig
    codebook_VE: Tensor

    def __call__(
        self,
        target_probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        noise: Noise,
    ) -> Verdict:
        """See `sjdvp.interfaces.Verifier`."""
        p_BWG, token_BWG, is_token_BWG = self._group(target_probs_BWV, draft_BW)
        is_x_BWG = token_BWG == draft_BW[..., None]
        p_BW1 = probability_of(self.form, target_probs_BWV, draft_BW)[..., None]
        apart_BWGE = self.codebook_VE[token_BWG] - self.codebook_VE[draft_BW][..., None, :]
        is_similar_BWG = ((p_BWG - p_BW1).abs() < self.config.delta) & (
            apart_BWGE.norm(dim=-1) < self.config.distance
        )
        in_cluster_BWG = (is_similar_BWG | is_x_BWG) & is_token_BWG
        p_BW = (p_BWG * in_cluster_BWG).sum(-1)
        q_BW = (draft_probs_BWV.gather(-1, token_BWG) * in_cluster_BWG).sum(-1)
        accepted_B = n_leading(keeps(p_BW, q_BW, noise.ticks_BW(Purpose.ACCEPT)))
        p_BV = take(target_probs_BWV, accepted_B)
        return Verdict(accepted_B, resample(self.form, p_BV, draft_probs_BWV, accepted_B, noise))

    def _group(self, probs_BWV: Tensor, token_BW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens around `token_BW` in rank: probabilities, tokens, and which exist."""
        sorted_BWV, by_rank_BWV = probs_BWV.sort(-1, descending=True)
        is_token_BWV = by_rank_BWV == token_BW[..., None]
        rank_BW1 = is_token_BWV.to(torch.int8).argmax(-1, keepdim=True)
        half = self.config.group // 2
        rank_BWG = rank_BW1 + torch.arange(-half, half + 1, device=rank_BW1.device)
        inside_BWG = rank_BWG.clamp(0, probs_BWV.shape[-1] - 1)
        exists_BWG = rank_BWG == inside_BWG
        return sorted_BWV.gather(-1, inside_BWG), by_rank_BWV.gather(-1, inside_BWG), exists_BWG


def n_leading(ok_BW: Tensor) -> Tensor:
    """Return how many draft tokens come before the first that is not ok [B].

    The last column holds no draft token.
    """
    return ok_BW[:, :-1].cumprod(-1, dtype=torch.int64).sum(-1)


def resample(
    form: Form, p_BY: Tensor, draft_probs_BWY: Tensor, accepted_B: Tensor, noise: Noise
) -> Tensor:
    """Sample the token after the accepted ones from (p - q)+ normalised, int64 [B].

    In the last column, which holds no draft token, q counts as zero.
    """
    was_rejected_B1 = (accepted_B < draft_probs_BWY.shape[1] - 1)[:, None]
    ticks_B = take(noise.ticks_BW(Purpose.RESAMPLE), accepted_B)
    return form.sample_residual(p_BY, take(draft_probs_BWY, accepted_B), was_rejected_B1, ticks_B)


def make_verifier(
    config: DecoderConfig,
    form: Form,
    codebook: Callable[[], Tensor],
    neighbours: Callable[[Tensor, int], Tensor],
) -> Verifier:
    """Build the verifier that a configuration names; see `sjdvp.decode.decoder.make_decoder`."""
    if config.verifier == "lantern":
        return Lantern(form, config.relax, neighbours(codebook(), config.relax.neighbours))
    if config.verifier == "gsd":
        return Gsd(form, config.relax, codebook())
    return SameNoise(form) if config.verifier == "same-noise" else RejectionSampling(form)


def nearest(codebook_VE: Tensor, k: int, chunk: int = 1024) -> Tensor:
    """Return the k tokens nearest to each token by codebook vector [V, min(k, V - 1)].

    Nearest first, the token itself left out; ties go to the lower token.
    """
    vocab_size = len(codebook_VE)
    found = []
    for first in range(0, vocab_size, chunk):
        part = codebook_VE[first : first + chunk]
        distance = torch.cdist(part, codebook_VE, compute_mode="donot_use_mm_for_euclid_dist")
        distance[torch.arange(len(part)), torch.arange(first, first + len(part))] = float("inf")
        found.append(distance.sort(stable=True, dim=-1).indices[:, : min(k, vocab_size - 1)])
    return torch.cat(found)
