"""A VQ decoder with less memory: its finest level, which takes the most, in bands of image rows.

Bands overlap by what the convolutions of the level reach. Group norms need the whole image: the
mean and variance of each are gathered over all bands before the next operation. With n norms each
band is computed n + 1 times, so this takes a few times longer. Only rounding differs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

_BAND = 8  # token rows
# Convolutions of 3 x 3 in the finest level of every decoder here: one after the upsampling, two in
# each of three blocks, and the last one. A band is wrong up to that many pixels from its edge.
_REACH = 8

Finest = Callable[[Tensor, int, int], Tensor]


def in_bands(
    finest: Finest,
    norms: Sequence[nn.GroupNorm],
    hidden: Tensor,
    n_rows: int,
    pixels_per_token: int,
) -> Tensor:
    """Return what `finest` makes of `hidden` [N, channels, height, width], an image of `n_rows`.

    `finest` takes a band of `hidden`, and the token rows where it starts and ends. It runs `norms`
    in their order.
    """
    unit, overlap = hidden.shape[2] // n_rows, -(-_REACH // pixels_per_token)
    bands = [
        (max(0, top - overlap), top, min(n_rows, top + _BAND), min(n_rows, top + _BAND + overlap))
        for top in range(0, n_rows, _BAND)
    ]
    with _shared_statistics(norms) as shared:
        for norm in norms:
            for start, top, bottom, end in bands:
                shared.part = (top - start) / (end - start), (bottom - start) / (end - start)
                try:
                    finest(hidden[:, :, start * unit : end * unit], start, end)
                except _NotKnownYetError:
                    continue
            shared.settle(norm)
        images = []
        for start, top, bottom, end in bands:
            image = finest(hidden[:, :, start * unit : end * unit], start, end)
            pixels = image.shape[2] // (end - start)
            images.append(image[:, :, (top - start) * pixels : (bottom - start) * pixels].clone())
    return torch.cat(images, 2)


class _NotKnownYetError(Exception):
    """A band has reached a norm whose statistics are being gathered."""


class _Shared:
    """Mean and variance of norms over all bands; `part` of a band's rows belongs to it alone."""

    def __init__(self) -> None:
        self.part = (0.0, 1.0)
        self._sums: list[Tensor] = []  # of each band: count, sum and sum of squares [N, groups]
        self._known: dict[nn.GroupNorm, tuple[Tensor, Tensor]] = {}

    def normalise(self, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        """Replace the forward method of a norm."""
        if norm not in self._known:
            first, last = (round(share * x.shape[2]) for share in self.part)
            groups = x[:, :, first:last].unflatten(1, (norm.num_groups, -1)).flatten(2)
            variance, mean = torch.var_mean(groups, 2, correction=0)
            mean, variance = mean.double(), variance.double()
            count = torch.full_like(mean, groups.shape[2])
            self._sums.append(torch.stack([count, count * mean, count * (variance + mean**2)]))
            raise _NotKnownYetError
        factor, offset = (part.to(x.dtype)[..., None, None] for part in self._known[norm])
        return x * factor + offset

    def settle(self, norm: nn.GroupNorm) -> None:
        """Compute the factor and offset [N, channels] of a norm from the sums of all bands."""
        count, total, squares = torch.stack(self._sums).sum(0)
        mean = total / count
        scale = (squares / count - mean**2 + norm.eps).rsqrt()
        in_group = norm.num_channels // norm.num_groups
        mean, scale = (part.repeat_interleave(in_group, 1) for part in (mean, scale))
        factor = scale * norm.weight
        self._known[norm], self._sums = (factor, norm.bias - mean * factor), []


@contextmanager
def _shared_statistics(norms: Sequence[nn.GroupNorm]) -> Iterator[_Shared]:
    shared = _Shared()
    for norm in norms:
        norm.forward = partial(shared.normalise, norm)  # type: ignore[method-assign]
    try:
        yield shared
    finally:
        for norm in norms:
            norm.__dict__.pop("forward", None)
