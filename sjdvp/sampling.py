"""From logits to distributions, and tokens from distributions with given noise.

There is one path from logits to a distribution: plain sampling, drafting, verification and the
residual all use `to_probs`, and nothing is warped twice. A distribution sums to one over the image
vocabulary, in float32 (float64 for float64 logits).
"""

import math

import torch
from torch import Tensor

from sjdvp.config import SamplingConfig


def apply_cfg(cond_BWV: Tensor, uncond_BWV: Tensor, scale_BW: Tensor) -> Tensor:
    """Return the logits of classifier-free guidance, uncond + scale * (cond - uncond).

    At scale 1 they are `cond`, bit for bit.
    """
    scale_BW1 = scale_BW[..., None]
    guided_BWV = uncond_BWV + scale_BW1 * (cond_BWV - uncond_BWV)
    return torch.where(scale_BW1 == 1, cond_BWV, guided_BWV)


def to_probs(logits_BWV: Tensor, forced_BW: Tensor, sampling: SamplingConfig) -> Tensor:
    """Return target distributions [B, W, V]: temperature, top-k, top-p, min-p, then softmax.

    At a forced position (the end of an image row) the distribution is one-hot at token 0, which the
    model maps to the forced token. So a forced token is drafted, accepted and committed like any
    other, and never rejected. Top-k keeps every logit that ties with the k-th, as the official
    samplers do. Temperature 0 is greedy: one-hot at the largest logit.
    """
    x_BWV = logits_BWV.to(torch.promote_types(logits_BWV.dtype, torch.float32))
    probs_BWV = (
        _greedy(x_BWV) if sampling.temperature == 0 else _warped(x_BWV, sampling).softmax(-1)
    )
    return one_hot_where(forced_BW, probs_BWV)


def one_hot_where(forced_BW: Tensor, probs_BWV: Tensor) -> Tensor:
    """Return the distributions [B, W, V], one-hot at token 0 wherever `forced_BW`."""
    token_V = torch.arange(probs_BWV.shape[-1], device=probs_BWV.device)
    return torch.where(forced_BW[..., None], (token_V == 0).to(probs_BWV.dtype), probs_BWV)


def _greedy(x: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), 1.0)


def _warped(x: Tensor, sampling: SamplingConfig) -> Tensor:
    x = x / sampling.temperature
    if 0 < sampling.top_k < x.shape[-1]:
        kth = x.topk(sampling.top_k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        x = x.masked_fill(x < kth, -math.inf)
    if sampling.top_p < 1:
        x = x.masked_fill(_outside_nucleus(x, sampling.top_p), -math.inf)
    if sampling.min_p > 0:
        least = x.amax(-1, keepdim=True) + math.log(sampling.min_p)
        x = x.masked_fill(x < least, -math.inf)
    return x


def _outside_nucleus(x: Tensor, top_p: float) -> Tensor:
    """Return where x is outside the smallest set of tokens whose probability reaches top_p.

    The most probable token is always inside.
    """
    value, order = x.sort(-1, descending=True)
    before = value.softmax(-1).cumsum(-1).roll(1, -1)
    before[..., 0] = 0
    return torch.zeros_like(x, dtype=torch.bool).scatter_(-1, order, before >= top_p)


def sample(weights: Tensor, u: Tensor) -> Tensor:
    """Sample one token from each line of weights [..., V], by inverting their running sum.

    `u` in (0, 1) has shape [...]. Weights are not negative and need not sum to one. A token of
    weight zero is never sampled; a line that is all zero, or not finite, gives some valid token.
    """
    total = weights.cumsum(-1)
    last = total[..., -1:]
    # A target that rounds up to the total would fall off the end, onto a token of weight zero.
    below = torch.nextafter(last, torch.zeros_like(last))
    target = torch.minimum(u[..., None].to(total.dtype) * last, below)
    token = torch.searchsorted(total, target, right=True).squeeze(-1)
    return token.clamp(max=weights.shape[-1] - 1)


def gumbel_sample(weights: Tensor, exponential: Tensor) -> Tensor:
    """Sample one token from each line of weights [..., V] by Gumbel-max with given noise.

    argmin E/w with E exponential is argmax(log w + Gumbel).
    """
    return (exponential.to(weights.dtype) / weights).argmin(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return (p - q)+ over the last dimension, not normalised.

    Where nothing but rounding is left of it (p equal to q), return p itself.
    """
    rest = (p - q).clamp(min=0)
    return torch.where(rest.sum(-1, keepdim=True) > torch.finfo(p.dtype).tiny, rest, p)


def total_variation(a: Tensor, b: Tensor) -> Tensor:
    """Return half the L1 distance of two distributions over the last dimension."""
    return (a - b).abs().sum(-1) / 2


def probability_of(probs_BWV: Tensor, token_BW: Tensor) -> Tensor:
    """Return the probabilities of the given tokens [B, W]."""
    return probs_BWV.gather(-1, token_BW[..., None]).squeeze(-1)
