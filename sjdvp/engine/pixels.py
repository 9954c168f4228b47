"""From image tokens to pixels, one image at a time."""

from typing import TYPE_CHECKING, Any

import torch

from sjdvp.engine.oom import is_out_of_memory, release_memory
from sjdvp.errors import ConfigError, ImageError
from sjdvp.models.base import ImageModel

if TYPE_CHECKING:
    import numpy as np


class PixelDecoder:
    """The VQ decoder of a model, which is on `device`; the transformer need not be loaded."""

    def __init__(self, model: ImageModel, device: torch.device) -> None:
        self.model = model
        self._device = device

    def __call__(self, tokens: tuple[int, ...]) -> "np.ndarray[Any, Any]":
        """Return the uint8 RGB pixels [H, W, 3].

        If memory runs out it tries again, with freed memory and in bands of image rows. Raises
        ImageError when memory is too small even then, or a pixel is not finite; ConfigError when
        the tokens cannot be an image of this model.
        """
        self._check(tokens)
        for bands in (False, True):
            try:
                tokens_N = torch.tensor(tokens, device=self._device)
                return self.model.decode_pixels(tokens_N, bands=bands).cpu().numpy()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if bands:
                    raise ImageError(
                        "out of memory in the VQ decoder; the image tokens are saved",
                        "`sjdvp decode` makes the image from them, with the VQ decoder alone",
                    ) from error
            release_memory()  # not in the except clause: the error holds tensors of its frames
        raise AssertionError("unreachable")

    def _check(self, tokens: tuple[int, ...]) -> None:
        layout = self.model.layout
        count = layout.rows * layout.columns
        if len(tokens) != count or max(tokens) >= layout.vocab_size:
            raise ConfigError(
                f"{self.model.name} has {count} image tokens below {layout.vocab_size}, "
                f"found {len(tokens)} up to {max(tokens, default=0)}",
                "give the model and the size of the run: --profile, --model, --size",
            )
