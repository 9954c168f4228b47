"""VQ decoders: from the indices of a codebook to pixels, in float32. Grids need not be square.

Inside this package a "code" is an index into the codebook.
"""

import torch
from torch import Tensor

from sjdvp.models.vq.movq import MovqDecoder as MovqDecoder
from sjdvp.models.vq.taming import TamingDecoder as TamingDecoder


def to_uint8(images: Tensor, *, truncate: bool) -> Tensor:
    """Return uint8 pixels [N, height, width, 3] of images in [-1, 1].

    Official code either truncates or rounds.
    """
    scaled = (images.clamp(-1, 1) + 1) * 127.5
    return (scaled if truncate else scaled.round()).to(torch.uint8).movedim(1, -1)
