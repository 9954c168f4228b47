"""Counter noise: each random number is a function of image seed, position, iteration, purpose.

There is no generator and no call order: batch size, order of admission, window, shards and resume
cannot change a number. It is the finaliser of SplitMix64 (Steele, Lea & Flood 2014) chained over
the counters, in wrapping int64 arithmetic.
"""

from collections.abc import Callable
from copy import copy
from enum import IntEnum

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB

TICK = 2.0**-24  # a uniform number is an odd multiple of it


class Purpose(IntEnum):
    """What a number is for. Two purposes never share a number, so no decision knows another's."""

    ACCEPT = 1  # the test of a draft token
    RESAMPLE = 2  # the resampled token, or the bonus token
    KEEP = 3  # whether a coupled drafter keeps a draft token
    DRAFT = 4  # a new draft token
    GUMBEL = 5  # one for each token of the vocabulary, for as long as the position is decoded


def keys(seeds: list[int], device: torch.device | str = "cpu") -> Tensor:
    """Return one int64 key for each image seed [B]."""
    return _mix(torch.tensor(seeds, dtype=torch.int64, device=device) + _GAMMA)


def position_keys(key_B: Tensor, pos_BW: Tensor) -> Tensor:
    """Return the key of each image position, int64 [B, W]."""
    return _chain(key_B[:, None], pos_BW)


def uniform(key: Tensor, *counters: Tensor | int) -> Tensor:
    """Return float32 numbers in (0, 1), one for each element of key and counters, broadcast.

    They have 23 bits and a half step: the smallest is 2^-24, the largest 1 - 2^-24, both exact in
    float32. With 24 bits the half step would be rounded away, and one number in 2^24 would be 1.
    """
    return _ticks(_chain(key, *counters)) * TICK


def exponential(key: Tensor, *counters: Tensor | int) -> Tensor:
    """Return standard exponential float32 numbers above 0, of full relative precision near 0.

    The smallest E_v / p_v belongs to token v with probability p_v. The numbers near 0 decide, so
    they are made of 53 bits.
    """
    u = _shift_right(_chain(key, *counters), 11).to(torch.float32) * 2.0**-53 + 2.0**-54
    return -torch.log1p(-u.clamp(max=1 - 2.0**-24))


class Noise:
    """The numbers of one iteration; each column belongs to the position whose key it has."""

    def __init__(self, position_key_BW: Tensor, nfe_B: Tensor) -> None:
        """Take the keys that `position_keys` gives, and the iteration of each slot."""
        self._all = _Numbers(position_key_BW, nfe_B)
        self._own: Callable[[Tensor], Tensor] = lambda all_BW: all_BW  # the columns that are its

    def first(self, width: int) -> "Noise":
        """Return the numbers of the first columns."""
        return self._part(lambda all_BW: all_BW[..., :width])

    def at(self, column_BW: Tensor) -> "Noise":
        """Return the numbers of the columns column_BW[b, w]."""
        return self._part(lambda all_BW: all_BW.gather(1, column_BW))

    def _part(self, own: Callable[[Tensor], Tensor]) -> "Noise":
        part = copy(self)
        part._own = own
        return part

    def ticks_BW(self, purpose: Purpose) -> Tensor:
        """Return an odd number below 2^24 for each position at this iteration, int64 [B, W].

        Times `TICK` it is uniform in (0, 1).
        """
        return self._own(self._all.ticks_UBW()[purpose - Purpose.ACCEPT])

    def exponential_BWT(self, token_BWT: Tensor) -> Tensor:
        """Return the fixed noise of Gumbel-max sampling of the given tokens, float32 [B, W, T].

        There is one exponential number for each position and token, the same at every iteration.
        """
        position_BW1 = self._own(self._all.position_key_BW)[..., None]
        return exponential(position_BW1, int(Purpose.GUMBEL), token_BWT)


class _Numbers:
    """What a noise and its parts share, made when one of them first asks."""

    def __init__(self, position_key_BW: Tensor, nfe_B: Tensor) -> None:
        self.position_key_BW, self._nfe_B = position_key_BW, nfe_B
        self._ticks_UBW: Tensor | None = None

    def ticks_UBW(self) -> Tensor:
        if self._ticks_UBW is None:  # all purposes at once: starting an operation is what costs
            purpose_U = counters(int(Purpose.ACCEPT), int(Purpose.GUMBEL), self._nfe_B.device)
            h_BW = _chain(self.position_key_BW, self._nfe_B[:, None])
            self._ticks_UBW = _ticks(_mix_high(_sum(h_BW, purpose_U[:, None, None])))
        return self._ticks_UBW


def counters(first: int, end: int, device: torch.device) -> Tensor:
    """Return first..end-1, int64, for sums with 64-bit constants.

    `| 0` keeps torch.compile from taking them for an index: that is 32 bits wide on a GPU, and
    Triton refuses to multiply it by `_GAMMA`.
    """
    return torch.arange(first, end, device=device) | 0


def _chain(key: Tensor, *counters: Tensor | int) -> Tensor:
    h = key
    for counter in counters:
        h = _mix(_sum(h, counter))
    return h


def _sum(h: Tensor, counter: Tensor | int) -> Tensor:
    """Return h + (counter + 1) * gamma modulo 2^64, signed: tensors wrap by themselves."""
    if isinstance(counter, int):
        return h + (((counter + 1) * _GAMMA + (1 << 63)) % (1 << 64) - (1 << 63))
    return torch.add(h, counter + 1, alpha=_GAMMA)


def _mix(x: Tensor) -> Tensor:
    """Return the finaliser of SplitMix64."""
    x = _mix_high(x)
    return x ^ _shift_right(x, 31)


def _mix_high(x: Tensor) -> Tensor:
    """Return a number whose 31 highest bits are those of `_mix`."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    return (x ^ _shift_right(x, 27)) * _MIX_2


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift int64 right logically: the sign of a negative number must not be dragged in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _ticks(h: Tensor) -> Tensor:
    """Return odd numbers below 2^24, made of the 23 highest bits."""
    return _shift_right(h, 40) | 1
