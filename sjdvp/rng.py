"""Counter noise: each random number is a function of image seed, position, iteration, purpose.

There is no generator and no call order: batch size, order of admission, window, shards and resume
cannot change a number. It is the finaliser of SplitMix64 (Steele, Lea & Flood 2014) chained over
the
counters, in wrapping int64 arithmetic.
"""

from collections.abc import Callable
from copy import copy
from enum import IntEnum

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


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


def uniform(key: Tensor, *counters: Tensor | int) -> Tensor:
    """Return float32 numbers in (0, 1), one for each element of key and counters, broadcast.

    They have 23 bits and a half step: the smallest is 2^-24, the largest 1 - 2^-24, both exact in
    float32. With 24 bits the half step would be rounded away, and one number in 2^24 would be 1.
    """
    return _unit(_chain(key, *counters))


def exponential(key: Tensor, *counters: Tensor | int) -> Tensor:
    """Return standard exponential float32 numbers above 0, of full relative precision near 0.

    The smallest E_v / p_v belongs to token v with probability p_v. The numbers near 0 decide, so
    they are made of 53 bits.
    """
    u = _shift_right(_chain(key, *counters), 11).to(torch.float32) * 2.0**-53 + 2.0**-54
    return -torch.log1p(-u.clamp(max=1 - 2.0**-24))


class Noise:
    """The numbers of one iteration: column w of slot b belongs to image position pos_BW[b, w]."""

    def __init__(self, key_B: Tensor, pos_BW: Tensor, nfe_B: Tensor) -> None:
        self._all = _Numbers(_chain(key_B[:, None], pos_BW), nfe_B)
        self._own: Callable[[Tensor], Tensor] = lambda all_BW: all_BW  # the columns that are its

    def first(self, width: int) -> "Noise":
        """Return the numbers of the first columns."""
        return self._part(lambda all_BW: all_BW[:, :width])

    def after(self, by_B: Tensor, width: int) -> "Noise":
        """Return the numbers of `width` columns from by_B[b] on."""
        column_BW = by_B[:, None] + torch.arange(width, device=by_B.device)
        return self._part(lambda all_BW: all_BW.gather(1, column_BW))

    def _part(self, own: Callable[[Tensor], Tensor]) -> "Noise":
        part = copy(self)
        part._own = own
        return part

    def uniform_BW(self, purpose: Purpose) -> Tensor:
        """Return one number in (0, 1) for each position at this iteration, float32 [B, W]."""
        return self._own(self._all.uniform_UBW()[purpose - Purpose.ACCEPT])

    def exponential_BWV(self, vocab_size: int) -> Tensor:
        """Return the fixed noise of Gumbel-max sampling, float32 [B, W, V].

        There is one exponential number for each position and token, the same at every iteration.
        """
        token_V = torch.arange(vocab_size, device=self._all.position_BW.device)
        position_BW1 = self._own(self._all.position_BW)[..., None]
        return exponential(position_BW1, int(Purpose.GUMBEL), token_V)


class _Numbers:
    """What a noise and its parts share, made when one of them first asks."""

    def __init__(self, position_BW: Tensor, nfe_B: Tensor) -> None:
        self.position_BW, self._nfe_B = position_BW, nfe_B
        self._uniform_UBW: Tensor | None = None

    def uniform_UBW(self) -> Tensor:
        if self._uniform_UBW is None:  # all purposes at once: starting an operation is what costs
            h_BW = _chain(self.position_BW, self._nfe_B[:, None])
            strides = [_stride(purpose) for purpose in range(Purpose.ACCEPT, Purpose.GUMBEL)]
            self._uniform_UBW = _unit(_mix(torch.stack([h_BW + stride for stride in strides])))
        return self._uniform_UBW


def _chain(key: Tensor, *counters: Tensor | int) -> Tensor:
    h = key
    for counter in counters:
        h = _mix(h + _stride(counter))
    return h


def _stride(counter: Tensor | int) -> Tensor | int:
    """Return (counter + 1) times gamma modulo 2^64, signed: tensors wrap by themselves."""
    stride = (counter + 1) * _GAMMA
    return (stride + (1 << 63)) % (1 << 64) - (1 << 63) if isinstance(stride, int) else stride


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift int64 right logically: the sign of a negative number must not be dragged in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _unit(h: Tensor) -> Tensor:
    return (_shift_right(h, 41).to(torch.float32) + 0.5) * 2.0**-23
