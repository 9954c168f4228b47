"""One class for all model families: what differs between them (prompts, weights, pixels) is given to it as parts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from sjdvp.errors import ImageError
from sjdvp.interfaces import ImageLayout, Prompt
from sjdvp.kv_cache import KVCache
from sjdvp.models.transformer import Transformer
from sjdvp.models.vq import to_uint8


class VqDecoder(Protocol):
    """A VQ decoder: float32 tokens [N, rows, columns] to pixels [N, 3, height, width] around [-1, 1]."""

    def codebook(self) -> Tensor:
        """Return the code vectors [V, E]."""

    def __call__(self, codes_NHW: Tensor) -> Tensor:
        """Decode tokens."""


@dataclass(frozen=True)
class ImageModel:
    """A transformer with its embeddings, head and pixel decoder; implements `sjdvp.interfaces.ImageModel`.

    `row_end_D` is the embedding of the forced token at the end of a row, for grids that have one.
    """

    name: str
    revision: str | None
    layout: ImageLayout
    max_prompt: int
    transformer: Transformer
    prompt: Callable[[str], Prompt]
    token_embeds_VD: Tensor
    row_end_D: Tensor | None
    head: Callable[[Tensor], Tensor]
    vq_decoder: VqDecoder
    truncate_pixels: (
        bool  # whether the official code cuts pixel values to whole numbers, or rounds them
    )
    n_prompt_bytes: int = 0  # of a model that only reads prompts

    @property
    def n_weights(self) -> int:
        """Weights that every forward reads: the transformer's, and a head over the image tokens."""
        return self.transformer.n_weights + self.token_embeds_VD.numel()

    @property
    def n_bytes(self) -> int:
        """Bytes of all that is loaded."""
        others = [part for part in (self.head, self.vq_decoder) if isinstance(part, nn.Module)]
        return (
            self.transformer.n_bytes
            + self.n_prompt_bytes
            + sum(w.nbytes for part in others for w in part.parameters())
        )

    @property
    def device(self) -> torch.device:
        """Where the transformer lives."""
        return self.transformer.device

    @property
    def dtype(self) -> torch.dtype:
        """What the transformer computes in."""
        return self.transformer.dtype

    def new_cache(self, n_sequences: int, kv_length: int) -> KVCache:
        """See `sjdvp.interfaces.ImageModel`."""
        return self.transformer.new_cache(n_sequences, kv_length)

    def embed(self, tokens_BW: Tensor, pos_BW: Tensor) -> Tensor:
        """See `sjdvp.interfaces.ImageModel`."""
        x_BWD = self.token_embeds_VD[tokens_BW]
        if self.row_end_D is None:
            return x_BWD
        return torch.where(self.layout.forced_at(pos_BW)[..., None], self.row_end_D, x_BWD)

    def hidden(self, x_RWD: Tensor, slots_RW: Tensor, mask_R1WC: Tensor, cache: KVCache) -> Tensor:
        """See `sjdvp.interfaces.ImageModel`."""
        return self.transformer(x_RWD, slots_RW, mask_R1WC, cache)

    def logits(self, h_RWD: Tensor) -> Tensor:
        """See `sjdvp.interfaces.ImageModel`."""
        return self.head(h_RWD)

    def codebook(self) -> Tensor:
        """See `sjdvp.interfaces.ImageModel`."""
        return self.vq_decoder.codebook()

    @torch.inference_mode()
    def pixels(self, tokens_N: Tensor) -> Tensor:
        """See `sjdvp.interfaces.ImageModel`. Raises ImageError when the decoder gives values that are not finite."""
        image_13HW = self.vq_decoder(tokens_N.view(1, self.layout.rows, self.layout.columns))
        if not image_13HW.isfinite().all():
            raise ImageError(
                "the pixel decoder gave values that are not finite",
                "are these the weights of this model?",
            )
        return to_uint8(image_13HW, truncate=self.truncate_pixels)[0]
