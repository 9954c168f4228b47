"""One class for all model families: prompts, transformer, head and VQ decoder are its parts.

A model knows no drafter, verifier or scheduler. Image position 0 follows the last prompt token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from sjdvp.errors import ConfigError, ImageError
from sjdvp.interfaces import EncodedPrompt, ImageLayout
from sjdvp.kv_cache import KVCache
from sjdvp.models.layers import EAGER_PARTS, LayerParts
from sjdvp.models.transformer import Transformer
from sjdvp.models.vq import to_uint8


class VqDecoder(Protocol):
    """Decodes the indices of a codebook to pixels, in float32."""

    def codebook(self) -> Tensor:
        """Return the codebook vectors [V, E]."""

    def __call__(self, indices: Tensor, *, bands: bool = False) -> Tensor:
        """Decode codebook indices [N, rows, columns] to pixels [N, 3, height, width] in [-1, 1].

        With `bands` it takes less memory and more time, see `sjdvp.models.vq.bands`.
        """


class Prompter(Protocol):
    """Makes both branches of a prompt: template, tokenizer, special tokens and embeddings."""

    def __call__(self, text: str, negative: str | None = None) -> EncodedPrompt:
        """Encode a prompt; `negative` is the text of the unconditional branch.

        None is the model's own branch. Other texts are for the models of
        `sjdvp.config.NEGATIVE_PROMPT`. Raises PromptError for a text that cannot be a prompt.
        """


@dataclass(frozen=True)
class ImageModel:
    """An autoregressive image model.

    `row_end_D` is the embedding of the forced token at the end of an image row, for layouts that
    have one. `at_size` returns the same model for images of another width and height in pixels; it
    shares the weights, and raises ConfigError for a size that the model does not have.
    """

    name: str
    revision: str | None  # the hub revision of the weights, if they came from the hub
    layout: ImageLayout
    max_prompt: int  # cache slots that one branch of a prompt may take
    transformer: Transformer
    prompt: Prompter
    token_embeds_VD: Tensor
    row_end_D: Tensor | None
    head: Callable[[Tensor], Tensor]
    vq_decoder: VqDecoder | None  # None: another program turns the tokens into pixels
    truncate_pixels: bool  # the official code truncates pixel values to integers; else it rounds
    n_prompt_bytes: int = 0  # of a text encoder
    at_size: "Callable[[int, int], ImageModel] | None" = None  # None: it has one size

    @property
    def n_weights(self) -> int:
        """Weights that a forward pass reads: the transformer's and a head over image tokens."""
        return self.transformer.n_weights + self.token_embeds_VD.numel()

    @property
    def n_bytes_read(self) -> int:
        """Bytes of these weights."""
        return self.transformer.n_bytes_read + self.token_embeds_VD.nbytes

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights."""
        others = [part for part in (self.head, self.vq_decoder) if isinstance(part, nn.Module)]
        return (
            self.transformer.n_bytes
            + self.n_prompt_bytes
            + sum(w.nbytes for part in others for w in part.parameters())
        )

    @property
    def device(self) -> torch.device:
        """The device of the embeddings, the head and the VQ decoder."""
        return self.transformer.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the transformer's weights and activations."""
        return self.transformer.dtype

    def new_cache(self, n_sequences: int, kv_length: int) -> KVCache:
        """Allocate the keys and values of `n_sequences` sequences, `kv_length` slots each."""
        return self.transformer.new_cache(n_sequences, kv_length)

    def embed(self, tokens_BW: Tensor, pos_BW: Tensor) -> Tensor:
        """Return the input embeddings [B, W, D] of tokens at image positions.

        Forced positions take the embedding of their forced token.
        """
        x_BWD = self.token_embeds_VD[tokens_BW]
        if self.row_end_D is None:
            return x_BWD
        return torch.where(self.layout.forced_at(pos_BW)[..., None], self.row_end_D, x_BWD)

    def hidden(
        self,
        x_RWD: Tensor,
        slots_RW: Tensor,
        mask_R1WC: Tensor,
        cache: KVCache,
        parts: LayerParts = EAGER_PARTS,
    ) -> Tensor:
        """Run the transformer [R, W, D] -> [R, W, D]; keys and values are written at `slots_RW`.

        The mask is boolean, True where attended. Slots beyond its length are not attended.
        """
        return self.transformer(x_RWD, slots_RW, mask_R1WC, cache, parts)

    def logits(self, h_RWD: Tensor) -> Tensor:
        """Return the logits over the image tokens alone [R, W, V]."""
        return self.head(h_RWD)

    def codebook(self) -> Tensor:
        """Return the codebook vectors [V, E]; relaxed verifiers measure distances between them.

        Raises ConfigError for a model without a VQ decoder.
        """
        if self.vq_decoder is None:
            raise ConfigError(
                f"{self.name} has no VQ decoder, so distances between its tokens are unknown",
                "choose a lossless decoder",
                "decoder.verifier",
            )
        return self.vq_decoder.codebook()

    @torch.inference_mode()
    def decode_pixels(self, tokens_N: Tensor, *, bands: bool = False) -> Tensor:
        """Decode the image tokens of one image in raster order [rows * columns].

        With `bands` it takes less memory and more time; a pixel may differ by 1.
        Returns uint8 RGB [height, width, 3]. Raises ImageError when a pixel value is not finite,
        ConfigError for a model without a VQ decoder.
        """
        if self.vq_decoder is None:
            raise ConfigError(
                f"{self.name} has no VQ decoder: another program turns its tokens into pixels",
                "docs/examples has a program for GLM-Image",
            )
        indices = tokens_N.view(1, self.layout.rows, self.layout.columns)
        image = self.vq_decoder(indices, bands=bands)
        if not image.isfinite().all():
            raise ImageError(
                "the VQ decoder gave pixel values that are not finite",
                "are these the weights of this model?",
            )
        return to_uint8(image, truncate=self.truncate_pixels)[0]
