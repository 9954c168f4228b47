"""The VQGAN decoder of taming-transformers: LlamaGen, Janus, Chameleon, Emu3.5, the embedded model.

Sources: LlamaGen tokenizer_image/vq_model.py, Chameleon inference/vqgan.py, Emu3.5
vision_tokenizer/ibq.py. All have attention in the middle, some also at the coarsest level;
LlamaGen's codebook vectors are normalised.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, silu
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAEDecoder

from sjdvp.errors import WeightsError
from sjdvp.models.checkpoints import Checkpoint, StoredWeight, load_strict, renamed
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.vq.bands import in_bands

# All but the decoder: encoder, losses, counters. Official loaders are not strict.
UNUSED = r"(?!decoder\.|post_quant_conv\.|quantize\.embedding\.)"


@dataclass(frozen=True, slots=True)
class TamingFamily:
    """What the weights of a family do not tell."""

    # (name in the layout of JanusVQVAE, number of levels) -> stored name
    stored_name: Callable[[str, int], str]
    normalised: bool  # whether codebook vectors are scaled to length 1


class Codebook(nn.Module):
    """The codebook vectors, under the name that checkpoints give them."""

    def __init__(self, n_codes: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_codes, size)


class TamingDecoder(nn.Module):
    """Decodes codes to pixels; named as JanusVQVAE, whose `up.0` is the coarsest level."""

    def __init__(
        self, config: JanusVQVAEConfig, *, coarsest_attention: bool = True, normalised: bool = True
    ) -> None:
        super().__init__()
        self.quantize = Codebook(config.num_embeddings, config.embed_dim)
        self.post_quant_conv = nn.Conv2d(config.embed_dim, config.latent_channels, 1)
        self.decoder = JanusVQVAEDecoder(config)
        self.normalised = normalised
        if not coarsest_attention:
            self.decoder.up[0].attn = nn.ModuleList()

    @classmethod
    def from_description(cls, values: Mapping[str, Any]) -> "TamingDecoder":
        """Build the module on the meta device from the values of a JanusVQVAEConfig."""
        with torch.device("meta"):
            return cls(JanusVQVAEConfig(**values))

    @classmethod
    def load(
        cls, stored: Checkpoint, family: TamingFamily, device: torch.device
    ) -> "TamingDecoder":
        """Build the module from a checkpoint; its shapes give all sizes.

        Raises WeightsError when it is not a VQGAN decoder.
        """
        what = f"a VQGAN decoder ({stored.where})"
        config = _describe(stored.shapes, family, what)
        n_levels = len(config.channel_multiplier)
        attends = family.stored_name("decoder.up.0.attn.0.norm.weight", n_levels) in stored
        with torch.device("meta"):
            decoder = cls(config, coarsest_attention=attends, normalised=family.normalised)

        def source(name: str) -> StoredWeight:
            return StoredWeight(family.stored_name(name, n_levels))

        load_strict(decoder, stored, what, torch.float32, DeviceMap(device), source, ignore=UNUSED)
        return decoder.eval().requires_grad_(False)

    @property
    def pixels_per_token(self) -> int:
        """Pixels along a side of one code: each level but the coarsest doubles them."""
        return 2 ** (len(self.decoder.up) - 1)

    def codebook(self) -> Tensor:
        """Return the codebook vectors [V, E]."""
        weight = self.quantize.embedding.weight
        return normalize(weight, dim=-1) if self.normalised else weight

    def forward(self, codes: Tensor, *, bands: bool = False) -> Tensor:
        """Decode codes [N, rows, columns] to pixels [N, 3, height, width], not clipped.

        With `bands` it takes less memory and more time.
        """
        latent = self.post_quant_conv(self.codebook()[codes].movedim(-1, 1))
        if not bands or len(self.decoder.up) == 1:
            image: Tensor = self.decoder(latent)
            return image
        hidden = self.decoder.mid(self.decoder.conv_in(latent))
        for level in self.decoder.up[:-2]:
            hidden = level.upsample(_level(level, hidden))
        hidden = _level(self.decoder.up[-2], hidden)
        norms = [norm for block in self.decoder.up[-1].block for norm in (block.norm1, block.norm2)]
        norms.append(self.decoder.norm_out)
        return in_bands(self._finest, norms, hidden, codes.shape[1], self.pixels_per_token)

    def _finest(self, hidden: Tensor, start: int, end: int) -> Tensor:
        """Decode a band from the features of the second finest level."""
        hidden = _level(self.decoder.up[-1], self.decoder.up[-2].upsample(hidden))
        image: Tensor = self.decoder.conv_out(silu(self.decoder.norm_out(hidden)))
        return image


def _level(level: Any, hidden: Tensor) -> Tensor:
    """Run the blocks of a level, and its attention where it has some."""
    for index, block in enumerate(level.block):
        hidden = block(hidden)
        if len(level.attn) > 0:
            hidden = level.attn[index](hidden)
    return hidden


def _describe(
    shapes: Mapping[str, torch.Size], family: TamingFamily, what: str
) -> JanusVQVAEConfig:
    """Read the sizes of a decoder from the shapes of its tensors."""
    levels = {
        match[1]
        for match in (re.match(r"decoder\.(?:conv_blocks|up)\.(\d+)\.", name) for name in shapes)
        if match
    }

    def shape(name: str) -> torch.Size:
        stored = family.stored_name(name, len(levels))
        if stored not in shapes:
            raise WeightsError(
                f"{what}: no {stored} in it", "is this the VQ decoder of this model?"
            )
        return shapes[stored]

    blocks = 0
    while family.stored_name(f"decoder.up.0.block.{blocks}.conv1.weight", len(levels)) in shapes:
        blocks += 1
    base = shape("decoder.conv_out.weight")[1]
    widths = [shape(f"decoder.up.{level}.block.0.conv1.weight")[0] for level in range(len(levels))]
    n_codes, embed_dim = shape("quantize.embedding.weight")
    return JanusVQVAEConfig(
        num_embeddings=n_codes,
        embed_dim=embed_dim,
        latent_channels=shape("decoder.conv_in.weight")[1],
        base_channels=base,
        channel_multiplier=[width // base for width in reversed(widths)],
        num_res_blocks=blocks - 1,
    )


def _llamagen_name(name: str, n_levels: int) -> str:
    name = renamed(
        name,
        ((".mid.block_1.", ".mid.0."), (".mid.attn_1.", ".mid.1."), (".mid.block_2.", ".mid.2.")),
    )
    return re.sub(
        r"decoder\.up\.(\d+)\.(block)?",
        lambda m: f"decoder.conv_blocks.{m[1]}.{'res' if m[2] else ''}",
        name,
    )


def _finest_first(name: str, n_levels: int) -> str:
    return re.sub(
        r"decoder\.up\.(\d+)\.", lambda m: f"decoder.up.{n_levels - 1 - int(m[1])}.", name
    )


LLAMAGEN = TamingFamily(_llamagen_name, normalised=True)
JANUS_HF = TamingFamily(lambda name, n_levels: name, normalised=True)
TAMING = TamingFamily(_finest_first, normalised=False)  # Chameleon's VQGAN, Emu3.5's IBQ
