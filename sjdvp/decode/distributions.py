"""How distributions are stored: `Dense`, all V probabilities, or `Sparse`, those of a few tokens.

A stored distribution is Y numbers in one tensor [..., Y], so both forms are slid along the window,
selected and overwritten by the same tensor operations. Only this module knows what the Y numbers
mean. Both forms sample the same tokens with the same noise.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from sjdvp import sampling
from sjdvp.config import SamplingConfig
from sjdvp.rng import Noise, Purpose


@dataclass(frozen=True, slots=True)
class Dense:
    """A distribution is its V probabilities: Y = V."""

    vocab_size: int
    n_support: int  # most tokens of a target distribution, where Gumbel-max sampling relies on it

    @property
    def width(self) -> int:
        """Numbers of a distribution, Y."""
        return self.vocab_size

    @property
    def n_tokens(self) -> int:
        """Tokens whose probability is stored."""
        return self.vocab_size

    def to_probs(self, logits_BWV: Tensor, forced_BW: Tensor, config: SamplingConfig) -> Tensor:
        """Return target distributions [B, W, Y]; see `sjdvp.sampling.to_probs`."""
        return sampling.to_probs(logits_BWV, forced_BW, config)

    def unusable(self, logits_BWV: Tensor, probs_BWY: Tensor) -> Tensor:
        """Return a number that is not 0 where the logits cannot be sampled from [B].

        It is NaN where a logit is not finite.
        """
        not_finite_B = sampling.not_finite(logits_BWV)
        if self.n_support == self.vocab_size:
            return not_finite_B
        return not_finite_B + sampling.too_wide(probs_BWY, self.n_support)

    def uniform(self, forced_BW: Tensor, dtype: torch.dtype) -> Tensor:
        """Return uniform distributions, one-hot at token 0 wherever `forced_BW` [B, W, Y]."""
        shape = (*forced_BW.shape, self.vocab_size)
        even_BWV = torch.full(shape, 1 / self.vocab_size, dtype=dtype, device=forced_BW.device)
        return self.one_hot_where(forced_BW, even_BWV)

    def one_hot(self, token_BW: Tensor, dtype: torch.dtype) -> Tensor:
        """Return one-hot distributions [B, W, Y]."""
        return one_hot(token_BW, self.vocab_size).to(dtype)

    def one_hot_where(self, forced_BW: Tensor, probs_BWY: Tensor) -> Tensor:
        """Return the distributions, one-hot at token 0 wherever `forced_BW` [B, W, Y]."""
        probs_BWV = probs_BWY.masked_fill(forced_BW[..., None], 0.0)
        probs_BWV[..., 0].masked_fill_(forced_BW, 1.0)
        return probs_BWV

    def at(self, probs: Tensor, token: Tensor) -> Tensor:
        """Return the probabilities [..., T] of the tokens [..., T]."""
        return probs.gather(-1, token)

    def top(self, probs: Tensor, n: int) -> Tensor:
        """Return the n most probable tokens, most probable first, int64 [..., n]."""
        return probs.topk(n, dim=-1).indices

    def put(self, probs: Tensor, top: Tensor, value: Tensor) -> Tensor:
        """Return the distributions with other probabilities [..., n] for tokens that `top` gave."""
        return probs.scatter(-1, top, value)

    def sample(self, probs: Tensor, ticks: Tensor) -> Tensor:
        """Sample a token from each distribution; see `sjdvp.sampling.sample`."""
        return sampling.sample(probs, ticks)

    def sample_residual(self, p: Tensor, q: Tensor, has_q: Tensor, ticks: Tensor) -> Tensor:
        """Sample from (p - q)+, from p where `has_q` [..., 1] is False or nothing is left."""
        return sampling.sample(sampling.residual(p, q, has_q), ticks)

    def gumbel_sample(self, probs_BWY: Tensor, noise: Noise) -> Tensor:
        """Sample by Gumbel-max, int64 [B, W]; see `sjdvp.sampling.gumbel_sample`."""
        return sampling.gumbel_sample(probs_BWY, noise, self.n_support)

    def dense(self, probs: Tensor) -> Tensor:
        """Return the probabilities of all tokens [..., V]."""
        return probs


@dataclass(frozen=True, slots=True)
class Sparse:
    """A distribution is Z token ids in rising order, and then their Z probabilities: Y = 2Z.

    The last id is V, which is no token: its probability is that of each token that is not listed.
    It is above 0 only in a uniform distribution, which lists none. Unused ids are V too. Ids are
    stored as floating-point numbers, which are exact up to 2^24.

    It is meant for top-k and a vocabulary much larger than k: all work after finding the largest
    logits is over Z numbers. The methods are those of `Dense`.
    """

    vocab_size: int
    n_support: int

    @property
    def _n_ids(self) -> int:
        return self.n_support + 2

    @property
    def width(self) -> int:
        """Numbers of a distribution, Y."""
        return 2 * self._n_ids

    @property
    def n_tokens(self) -> int:
        """Tokens whose probability is stored; one more than a distribution may have."""
        return self.n_support + 1

    def to_probs(self, logits_BWV: Tensor, forced_BW: Tensor, config: SamplingConfig) -> Tensor:
        """Return target distributions [B, W, Y]: of V logits, only the largest are used."""
        x_BWZ, token_BWZ = logits_BWV.topk(self.n_tokens, sorted=False)
        token_BWZ, order_BWZ = token_BWZ.sort(-1)
        x_BWZ = sampling.scaled(x_BWZ.gather(-1, order_BWZ), config)
        x_BWZ = sampling.top_k_of(x_BWZ, config.top_k)
        # Where all of them are in the top-k, there may be more: NaN fails the sequence.
        too_wide_BW1 = x_BWZ.amin(-1, keepdim=True) > -math.inf
        probs_BWZ = sampling.nucleus_of(x_BWZ, config).softmax(-1)
        probs_BWZ = probs_BWZ.masked_fill(too_wide_BW1, math.nan)
        ids_BWZ = pad(token_BWZ.to(probs_BWZ.dtype), (0, 1), value=self.vocab_size)
        probs_BWY = torch.cat([ids_BWZ, pad(probs_BWZ, (0, 1))], -1)
        return self.one_hot_where(forced_BW, probs_BWY)

    def unusable(self, logits_BWV: Tensor, probs_BWY: Tensor) -> Tensor:
        """Return a number that is not 0 where the logits cannot be sampled from [B]."""
        return sampling.not_finite(logits_BWV) + probs_BWY[..., self._n_ids].isnan().any(-1)

    def uniform(self, forced_BW: Tensor, dtype: torch.dtype) -> Tensor:
        """Return uniform distributions, one-hot at token 0 wherever `forced_BW` [B, W, Y]."""
        probs_BWY = self._empty(forced_BW, dtype)
        probs_BWY[..., -1] = 1 / self.vocab_size
        return self.one_hot_where(forced_BW, probs_BWY)

    def one_hot(self, token_BW: Tensor, dtype: torch.dtype) -> Tensor:
        """Return one-hot distributions [B, W, Y]."""
        probs_BWY = self._empty(token_BW, dtype)
        probs_BWY[..., 0] = token_BW
        probs_BWY[..., self._n_ids] = 1
        return probs_BWY

    def one_hot_where(self, forced_BW: Tensor, probs_BWY: Tensor) -> Tensor:
        """Return the distributions, one-hot at token 0 wherever `forced_BW` [B, W, Y]."""
        probs_BWY = probs_BWY.clone()
        ids_BWZ, probs_BWZ = self._parts(probs_BWY)
        ids_BWZ[..., 0].masked_fill_(forced_BW, 0)
        probs_BWZ.masked_fill_(forced_BW[..., None], 0)
        probs_BWZ[..., 0].masked_fill_(forced_BW, 1)
        return probs_BWY

    def at(self, probs: Tensor, token: Tensor) -> Tensor:
        """Return the probabilities [..., T] of the tokens [..., T]."""
        ids, listed = self._parts(probs)
        place = _place(ids, token)
        is_listed = ids.gather(-1, place) == token
        return torch.where(is_listed, listed.gather(-1, place), listed[..., -1:])

    def top(self, probs: Tensor, n: int) -> Tensor:
        """Return the n most probable tokens, most probable first, int64 [..., n]."""
        ids, listed = self._parts(probs)
        return ids.gather(-1, listed[..., :-1].topk(n, dim=-1).indices).long()

    def put(self, probs: Tensor, top: Tensor, value: Tensor) -> Tensor:
        """Return the distributions with other probabilities [..., n] for tokens that `top` gave."""
        ids, _ = self._parts(probs)
        return probs.scatter(-1, self._n_ids + _place(ids, top), value)

    def sample(self, probs: Tensor, ticks: Tensor) -> Tensor:
        """Sample a token from each distribution."""
        return self._sample(*self._parts(probs), ticks)

    def sample_residual(self, p: Tensor, q: Tensor, has_q: Tensor, ticks: Tensor) -> Tensor:
        """Sample from (p - q)+, which lies on the support of p. A uniform p has no q."""
        ids, listed = self._parts(p)
        return self._sample(ids, sampling.residual(listed, self.at(q, ids), has_q), ticks)

    def gumbel_sample(self, probs_BWY: Tensor, noise: Noise) -> Tensor:
        """Sample by Gumbel-max, int64 [B, W]; from a uniform distribution by inversion."""
        ids_BWZ, probs_BWZ = self._parts(probs_BWY)
        e_BWZ = noise.exponential_BWT(ids_BWZ.long())
        first_BW1 = (e_BWZ.to(probs_BWZ.dtype) / probs_BWZ).argmin(-1, keepdim=True)
        # Of a uniform distribution, a number for each of V tokens would only cost time.
        ticks_BW = noise.ticks_BW(Purpose.DRAFT)
        return self._token(ids_BWZ.gather(-1, first_BW1), probs_BWZ[..., -1:], ticks_BW)

    def dense(self, probs: Tensor) -> Tensor:
        """Return the probabilities of all tokens [..., V]."""
        ids, listed = self._parts(probs)
        rest = listed[..., -1:].expand(*listed.shape[:-1], self.vocab_size + 1)
        return rest.scatter(-1, ids.long(), listed)[..., :-1]

    def _parts(self, probs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids and their probabilities [..., Z]: views."""
        return probs[..., : self._n_ids], probs[..., self._n_ids :]

    def _empty(self, like_BW: Tensor, dtype: torch.dtype) -> Tensor:
        """Return distributions that list no token, and have no probability [B, W, Y]."""
        ids_BWZ = like_BW.new_full((*like_BW.shape, self._n_ids), self.vocab_size, dtype=dtype)
        return pad(ids_BWZ, (0, self._n_ids))

    def _sample(self, ids: Tensor, listed: Tensor, ticks: Tensor) -> Tensor:
        first = sampling.sample(listed[..., :-1], ticks)
        return self._token(ids.gather(-1, first[..., None]), listed[..., -1:], ticks)

    def _token(self, listed: Tensor, rest: Tensor, ticks: Tensor) -> Tensor:
        """Return the token `listed` [..., 1]; where `rest` is above 0, any token. int64 [...]."""
        step = sampling.running_sum(rest)  # by which the running sum of a uniform one rises
        even = (step * self.vocab_size * ticks[..., None] >> 24) // step.clamp(min=1)
        return torch.where(step > 0, even, listed.long()).squeeze(-1)


Form = Dense | Sparse


def _place(ids: Tensor, token: Tensor) -> Tensor:
    """Return where each token [..., T] is among the ids [..., Z], or would be, int64 [..., T]."""
    # Contiguous, or searchsorted warns. A slot that was never used has no id V at the end.
    place = torch.searchsorted(ids.contiguous(), token.to(ids.dtype).contiguous())
    return place.clamp(max=ids.shape[-1] - 1)


def probability_of(form: Form, probs_BWY: Tensor, token_BW: Tensor) -> Tensor:
    """Return the probabilities of the given tokens [B, W]."""
    return form.at(probs_BWY, token_BW[..., None]).squeeze(-1)
