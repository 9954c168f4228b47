"""One class for all model families: what differs between them (prompts, weights, pixels) is given to it as parts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from sjdvp.backbones.grid import Grid
from sjdvp.backbones.pixels import to_uint8
from sjdvp.backbones.trunk import Trunk
from sjdvp.cache import RowCache
from sjdvp.errors import ImageError
from sjdvp.interfaces import Prompt


class PixelDecoder(Protocol):
    """A VQ decoder: float32 codes [N, rows, columns] to pixels [N, 3, height, width] around [-1, 1]."""

    def codebook(self) -> Tensor:
        """Return the code vectors [V, E]."""

    def __call__(self, codes_NHW: Tensor) -> Tensor:
        """Decode codes."""


@dataclass(frozen=True)
class Adapter:
    """A trunk with its embeddings, head and pixel decoder; implements `sjdvp.interfaces.Backbone`.

    `row_end_D` is the embedding of the forced token at the end of a row, for grids that have one.
    """

    name: str
    revision: str | None
    grid: Grid
    max_prompt: int
    trunk: Trunk
    prompt: Callable[[str], Prompt]
    code_embeds_VD: Tensor
    row_end_D: Tensor | None
    head: Callable[[Tensor], Tensor]
    pixel_decoder: PixelDecoder
    truncate_pixels: bool  # whether the official code cuts pixel values to whole numbers, or rounds them
    n_prompt_bytes: int = 0  # of a model that only reads prompts

    @property
    def n_codes(self) -> int:
        """Image codes, V."""
        return self.code_embeds_VD.shape[0]

    @property
    def n_weights(self) -> int:
        """Weights that every forward reads: the trunk's, and a head over the image codes."""
        return self.trunk.n_weights + self.code_embeds_VD.numel()

    @property
    def n_bytes(self) -> int:
        """Bytes of all that is loaded."""
        others = [part for part in (self.head, self.pixel_decoder) if isinstance(part, nn.Module)]
        return self.trunk.n_bytes + self.n_prompt_bytes + sum(w.nbytes for part in others for w in part.parameters())

    @property
    def device(self) -> torch.device:
        """Where the trunk lives."""
        return self.trunk.device

    @property
    def dtype(self) -> torch.dtype:
        """What the trunk computes in."""
        return self.trunk.dtype

    def new_cache(self, n_rows: int, n_slots: int) -> RowCache:
        """See `sjdvp.interfaces.Backbone`."""
        return self.trunk.new_cache(n_rows, n_slots)

    def embed(self, codes_BW: Tensor, pos_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Backbone`."""
        x_BWD = self.code_embeds_VD[codes_BW]
        if self.row_end_D is None:
            return x_BWD
        is_row_end_BW = pos_BW % self.grid.stride >= self.grid.columns
        return torch.where(is_row_end_BW[..., None], self.row_end_D, x_BWD)

    def hidden(self, x_RWD: Tensor, slots_RW: Tensor, mask_R1WC: Tensor, cache: RowCache) -> Tensor:
        """See `sjdvp.interfaces.Backbone`."""
        return self.trunk(x_RWD, slots_RW, mask_R1WC, cache)

    def logits(self, h_RWD: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Backbone`."""
        return self.head(h_RWD)

    def codebook(self) -> Tensor:
        """See `sjdvp.interfaces.Backbone`."""
        return self.pixel_decoder.codebook()

    @torch.inference_mode()
    def pixels(self, codes_N: Tensor) -> Tensor:
        """See `sjdvp.interfaces.Backbone`. Raises ImageError when the decoder gives values that are not finite."""
        image_13HW = self.pixel_decoder(codes_N.view(1, self.grid.rows, self.grid.columns))
        if not image_13HW.isfinite().all():
            raise ImageError("the pixel decoder gave values that are not finite", "are these the weights of this model?")
        return to_uint8(image_13HW, truncate=self.truncate_pixels)[0]
