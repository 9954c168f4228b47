"""Counter noise: every random number is a pure function of (image seed, image position, step, purpose).

No generator, no call order: batch size, admission order, window, shards and resume cannot change a draw. The generator is the
finaliser of SplitMix64 (Steele, Lea & Flood 2014) chained over the counters, in wrapping int64 arithmetic.
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
    """What a number is drawn for. Two purposes never share a number, so no decision can learn of another's noise."""

    ACCEPT = 1  # the test of a draft
    RESAMPLE = 2  # the draw that replaces the first rejected draft, and the bonus draw
    KEEP = 3  # whether a coupled drafter keeps a draft
    DRAFT = 4  # the draw of a new draft
    GUMBEL = 5  # per code, for the whole life of a position


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift int64 right logically: the arithmetic shift of a negative number must not drag its sign in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def keys(seeds: list[int], device: torch.device | str = "cpu") -> Tensor:
    """Return one int64 key per image seed [B]."""
    return _mix(torch.tensor(seeds, dtype=torch.int64, device=device) + _GAMMA)


def uniform(key: Tensor, *counters: Tensor | int) -> Tensor:
    """Return float32 numbers in the open interval (0, 1), one for each element of the broadcast of `key` and the counters.

    23 bits and a half step: the smallest is 2^-24, the largest 1 - 2^-24, both exact in float32. (With 24 bits the half step is
    rounded away and one draw in 2^24 is exactly 1, whose Gumbel value is infinite.)
    """
    return _unit(_chain(key, *counters))


def _unit(h: Tensor) -> Tensor:
    return (_shift_right(h, 41).to(torch.float32) + 0.5) * 2.0**-23


def exponential(key: Tensor, *counters: Tensor | int) -> Tensor:
    """Return standard exponential float32 numbers, above 0, with full relative precision near 0.

    The smallest of E_v / p_v falls on code v with probability p_v, so it is the numbers near 0 that decide: they come from 53 bits.
    """
    u = _shift_right(_chain(key, *counters), 11).to(torch.float32) * 2.0**-53 + 2.0**-54
    return -torch.log1p(-u.clamp(max=1 - 2.0**-24))


def _chain(key: Tensor, *counters: Tensor | int) -> Tensor:
    h = key
    for counter in counters:
        h = _mix(h + _stride(counter))
    return h


def _stride(counter: Tensor | int) -> Tensor | int:
    """Return (counter + 1) times gamma modulo 2^64, as a signed 64-bit integer: tensor arithmetic wraps by itself, Python's not."""
    stride = (counter + 1) * _GAMMA
    return (stride + (1 << 63)) % (1 << 64) - (1 << 63) if isinstance(stride, int) else stride


class Noise:
    """The numbers of one step: row b, column w belong to image position pos_BW[b, w] at that row's own step step_B[b]."""

    def __init__(self, key_B: Tensor, pos_BW: Tensor, step_B: Tensor) -> None:
        self._all = _Numbers(_chain(key_B[:, None], pos_BW), step_B)
        self._own: Callable[[Tensor], Tensor] = lambda t: (
            t
        )  # the columns of all that are this object's

    def first(self, width: int) -> "Noise":
        """Return the numbers of the first columns."""
        return self._part(lambda t_BW: t_BW[:, :width])

    def after(self, by_B: Tensor, width: int) -> "Noise":
        """Return the numbers of `width` columns from by_B[b] on."""
        column_BW = by_B[:, None] + torch.arange(width, device=by_B.device)
        return self._part(lambda t_BW: t_BW.gather(1, column_BW))

    def _part(self, own: Callable[[Tensor], Tensor]) -> "Noise":
        part = copy(self)
        part._own = own
        return part

    def uniform_BW(self, purpose: Purpose) -> Tensor:
        """Return one number in (0, 1) for each position of this step."""
        return self._own(self._all.uniform_PBW()[purpose - Purpose.ACCEPT])

    def exponential_BWV(self, vocab_size: int) -> Tensor:
        """Return one exponential number for each position and code, the same at every step: the fixed noise of Gumbel draws."""
        token_V = torch.arange(vocab_size, device=self._all.position_BW.device)
        return exponential(
            self._own(self._all.position_BW)[..., None], int(Purpose.GUMBEL), token_V
        )


class _Numbers:
    """What a noise and its parts share, made when one of them first asks."""

    def __init__(self, position_BW: Tensor, step_B: Tensor) -> None:
        self.position_BW, self._step_B = position_BW, step_B
        self._uniform_PBW: Tensor | None = None

    def uniform_PBW(self) -> Tensor:
        if (
            self._uniform_PBW is None
        ):  # all purposes at once: what takes time is to start so many small operations
            h_BW = _chain(self.position_BW, self._step_B[:, None])
            strides = [_stride(purpose) for purpose in range(Purpose.ACCEPT, Purpose.GUMBEL)]
            self._uniform_PBW = _unit(_mix(torch.stack([h_BW + stride for stride in strides])))
        return self._uniform_PBW
