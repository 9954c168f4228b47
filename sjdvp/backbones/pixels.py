"""From image codes to pixels: the VQ decoder families. Always float32; grids need not be square."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAEDecoder


class _Codebook(nn.Module):
    """Holds the embedding under the name that checkpoints give it."""

    def __init__(self, n_codes: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_codes, size)


class TamingDecoder(nn.Module):
    """The VQGAN decoder of taming-transformers: LlamaGen, Janus-Pro and the embedded model, in the key layout of JanusVQVAE."""

    def __init__(self, config: JanusVQVAEConfig) -> None:
        super().__init__()
        self.quantize = _Codebook(config.num_embeddings, config.embed_dim)
        self.post_quant_conv = nn.Conv2d(config.embed_dim, config.latent_channels, 1)
        self.decoder = JanusVQVAEDecoder(config)

    @classmethod
    def from_description(cls, values: Mapping[str, Any]) -> "TamingDecoder":
        """Build the module on the meta device from the values of a JanusVQVAEConfig."""
        with torch.device("meta"):
            return cls(JanusVQVAEConfig(**values))

    def codebook(self) -> Tensor:
        """Return the code vectors [V, E], on the unit sphere, as they are looked up."""
        return normalize(self.quantize.embedding.weight, dim=-1)

    def forward(self, codes_NHW: Tensor) -> Tensor:
        """Decode codes [N, rows, columns] to pixels [N, 3, height, width] around [-1, 1], not clipped."""
        z = self.codebook()[codes_NHW].movedim(-1, 1)
        image: Tensor = self.decoder(self.post_quant_conv(z))
        return image


def to_uint8(image_N3HW: Tensor, *, truncate: bool) -> Tensor:
    """Return uint8 pixels [N, height, width, 3] of images in [-1, 1]; official codes differ in whether they truncate or round."""
    scaled = (image_N3HW.clamp(-1, 1) + 1) * 127.5
    return (scaled if truncate else scaled.round()).to(torch.uint8).movedim(1, -1)
