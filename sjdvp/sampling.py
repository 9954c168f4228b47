"""From logits to distributions, the only path there is, and draws from a distribution with given noise.

The same `distributions` serves plain sampling, drafting, verifying and the residual; nothing is warped twice. A distribution sums to one over the
image tokens in float32 (float64 for float64 logits).
"""

import math

import torch
from torch import Tensor

from sjdvp.config import SamplingConfig


def apply_cfg(cond: Tensor, uncond: Tensor, scale: float) -> Tensor:
    """Return the logits of classifier-free guidance, uncond + scale * (cond - uncond)."""
    return uncond + scale * (cond - uncond)


def to_probs(logits_BWV: Tensor, forced_BW: Tensor, sampling: SamplingConfig) -> Tensor:
    """Return the target distributions target_probs_BWV: temperature, then top-k, then top-p, then softmax.

    At a forced position (row end) the distribution is one-hot at code 0, a stand-in that the model maps to the forced token: so a forced
    token is drafted, accepted and committed by the same arithmetic as any other, and never rejected.
    Top-k keeps every logit that ties with the k-th, as the official samplers do. Temperature 0 is greedy.
    """
    x_BWV = logits_BWV.to(torch.promote_types(logits_BWV.dtype, torch.float32))
    target_probs_BWV = (
        _greedy(x_BWV) if sampling.temperature == 0 else _warped(x_BWV, sampling).softmax(-1)
    )
    return one_hot_where(forced_BW, target_probs_BWV)


def one_hot_where(forced_BW: Tensor, target_probs_BWV: Tensor) -> Tensor:
    """Return the distributions with a one-hot at code 0 wherever `forced_BW`."""
    token_V = torch.arange(target_probs_BWV.shape[-1], device=target_probs_BWV.device)
    return torch.where(
        forced_BW[..., None], (token_V == 0).to(target_probs_BWV.dtype), target_probs_BWV
    )


def _greedy(x: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), 1.0)


def _warped(x: Tensor, sampling: SamplingConfig) -> Tensor:
    x = x / sampling.temperature
    if 0 < sampling.top_k < x.shape[-1]:
        kth = x.topk(sampling.top_k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        x = x.masked_fill(x < kth, -math.inf)
    if sampling.top_p < 1:
        x = x.masked_fill(_outside_nucleus(x, sampling.top_p), -math.inf)
    return x


def _outside_nucleus(x: Tensor, top_p: float) -> Tensor:
    """Return where x is outside the smallest set of tokens whose probability reaches top_p (the most probable code is always in)."""
    value, order = x.sort(-1, descending=True)
    before = value.softmax(-1).cumsum(-1).roll(1, -1)
    before[..., 0] = 0
    return torch.zeros_like(x, dtype=torch.bool).scatter_(-1, order, before >= top_p)


def sample(weights: Tensor, u: Tensor) -> Tensor:
    """Draw one code from each row of non-negative weights [..., V] by inverting their running sum; u in (0, 1) has shape [...].

    Weights need not sum to one. A code of weight zero is never drawn; a row that is all zero, or not finite, gives a valid code.
    """
    total = weights.cumsum(-1)
    last = total[..., -1:]
    # A target that rounds up to the total would fall off the end, onto a code that may have weight zero.
    target = torch.minimum(
        u[..., None].to(total.dtype) * last, torch.nextafter(last, torch.zeros_like(last))
    )
    return (
        torch.searchsorted(total, target, right=True).squeeze(-1).clamp(max=weights.shape[-1] - 1)
    )


def gumbel_sample(weights: Tensor, exponential: Tensor) -> Tensor:
    """Draw one code from each row of weights [..., V] by an exponential gumbel_sample: argmin E/w, which is argmax(log w + Gumbel)."""
    return (exponential.to(weights.dtype) / weights).argmin(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return (p - q)+ over the last dimension, not normalised; p itself where nothing is left but rounding (p equal to q)."""
    rest = (p - q).clamp(min=0)
    return torch.where(rest.sum(-1, keepdim=True) > torch.finfo(p.dtype).tiny, rest, p)
