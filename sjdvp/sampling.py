"""From logits to distributions, and tokens from distributions with given noise.

There is one path from logits to a distribution: plain sampling, drafting, verification and the
residual all use `to_probs`, and nothing is warped twice. A distribution sums to one over the image
vocabulary, in float32 (float64 for float64 logits).
"""

import math

import torch
from torch import Tensor

from sjdvp.config import SamplingConfig
from sjdvp.rng import TICK, Noise, counters

_SCALE = 2.0**38  # ticks in a probability of 1: times 24 bits of noise, they still fit into int64
MOST_TIES = 2048  # tokens that may tie with the k-th of top-k where only few tokens are kept


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
    x_BWV = scaled(logits_BWV, sampling)
    # So large that all others have probability 0. In place: the division made a copy.
    x_BWV[..., 0].masked_fill_(forced_BW, torch.finfo(x_BWV.dtype).max)
    if sampling.temperature == 0:
        return _greedy(x_BWV)
    return nucleus_of(top_k_of(x_BWV, sampling.top_k), sampling).softmax(-1)


def scaled(logits: Tensor, sampling: SamplingConfig) -> Tensor:
    """Return a copy of the logits, in float32 or float64, divided by the temperature."""
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return x / (sampling.temperature or 1.0)


def _greedy(x: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), 1.0)


def top_k_of(x: Tensor, k: int) -> Tensor:
    """Return the logits [..., V], -inf outside top-k; k = 0 is off."""
    if not 0 < k < x.shape[-1]:
        return x
    kth = x.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return x.masked_fill(x < kth, -math.inf)


def nucleus_of(x: Tensor, sampling: SamplingConfig) -> Tensor:
    """Return the logits [..., V], -inf outside top-p and min-p."""
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
    before = running_sum(value.softmax(-1)).roll(1, -1)
    before[..., 0] = 0
    outside = before >= int(top_p * _SCALE)
    return torch.zeros_like(x, dtype=torch.bool).scatter_(-1, order, outside)


def running_sum(probs: Tensor) -> Tensor:
    """Return the running sum of probabilities over the last dimension, in ticks of 2^-38, int64.

    Sums of integers are the same in every order. A GPU sums floating-point numbers in an order that
    depends on the kernel and the batch, and its running sums may even fall.
    """
    return (probs * _SCALE).cumsum(-1, dtype=torch.int64)


def sample(probs: Tensor, ticks: Tensor) -> Tensor:
    """Sample one token from each line of probabilities [..., V], by inverting their running sum.

    Lines need not sum to one, but to no more than two. `ticks` int64 [...] are odd numbers below
    2^24, see `sjdvp.rng.Noise.ticks_BW`. A token of probability zero is never sampled; a line that
    is all zero, or not finite, gives some valid token.
    """
    total = running_sum(probs)
    target = total[..., -1:] * ticks[..., None] >> 24  # below the total, and exact
    token = torch.searchsorted(total, target, right=True).squeeze(-1)
    return token.clamp(max=probs.shape[-1] - 1)


def keeps(p: Tensor, q: Tensor, ticks: Tensor) -> Tensor:
    """Return True with probability min(1, p/q): u * q < p, with u = ticks * 2^-24."""
    return torch.addcmul(p, q, ticks, value=-TICK) > 0


def gumbel_sample(probs_BWV: Tensor, noise: Noise, n_support: int) -> Tensor:
    """Sample tokens by Gumbel-max with the fixed noise of their positions, int64 [B, W].

    argmin E/p with E exponential is argmax(log p + Gumbel). Only the `n_support` most probable
    tokens have noise made for them; all others must have probability zero, see `too_wide`.
    """
    V = probs_BWV.shape[-1]
    if n_support < V:
        probs_BWT, token_BWT = probs_BWV.topk(n_support, sorted=False)
        e_BWT = noise.exponential_BWT(token_BWT)
        first_BW1 = (e_BWT.to(probs_BWT.dtype) / probs_BWT).argmin(-1, keepdim=True)
        return token_BWT.gather(-1, first_BW1).squeeze(-1)
    e_BWV = noise.exponential_BWT(counters(0, V, probs_BWV.device))
    return (e_BWV.to(probs_BWV.dtype) / probs_BWV).argmin(-1)


def n_support(sampling: SamplingConfig, vocab_size: int) -> int:
    """Return how many tokens get noise for Gumbel-max sampling, or are kept when sparse.

    With top-k these are k and `MOST_TIES` that tie with the k-th: in 16 bits many do.
    """
    return min(sampling.top_k + MOST_TIES, vocab_size) if sampling.top_k else vocab_size


def too_wide(probs_BWV: Tensor, n_support: int) -> Tensor:
    """Return which sequences have a distribution with more than `n_support` tokens, bool [B].

    Gumbel-max sampling would leave some of them out.
    """
    return probs_BWV.count_nonzero(-1).amax(-1) > n_support


def not_finite(logits_BWV: Tensor) -> Tensor:
    """Return NaN for sequences with a logit that is not finite, 0 for the others [B]."""
    return (logits_BWV * 0).sum((-1, -2))


def residual(p: Tensor, q: Tensor, has_q: Tensor) -> Tensor:
    """Return (p - q)+ over the last dimension, not normalised; p where `has_q` is False.

    `has_q` is bool [..., 1]. Where nothing but rounding is left (p equal to q), return p itself.
    """
    rest = torch.addcmul(p, q, has_q, value=-1).clamp(min=0)
    return torch.where(rest.amax(-1, keepdim=True) >= 1 / _SCALE, rest, p)


def total_variation(a: Tensor, b: Tensor) -> Tensor:
    """Return half the L1 distance of two distributions over the last dimension."""
    return (a - b).abs().sum(-1) / 2


def probability_of(probs_BWV: Tensor, token_BW: Tensor) -> Tensor:
    """Return the probabilities of the given tokens [B, W]."""
    return probs_BWV.gather(-1, token_BW[..., None]).squeeze(-1)
