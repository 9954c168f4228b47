"""From decoder output to pixel values."""

import torch
from torch import Tensor


def to_uint8(image_N3HW: Tensor, *, truncate: bool) -> Tensor:
    """Return uint8 pixels [N, height, width, 3] of images in [-1, 1]; official codes differ in whether they truncate or round."""
    scaled = (image_N3HW.clamp(-1, 1) + 1) * 127.5
    return (scaled if truncate else scaled.round()).to(torch.uint8).movedim(1, -1)
