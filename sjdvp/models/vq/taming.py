"""The VQGAN decoder of taming-transformers: LlamaGen, Janus, the Chameleon family, Emu3.5 and the embedded model.

Sources of the variants: LlamaGen tokenizer_image/vq_model.py, Chameleon inference/vqgan.py, Emu3.5 vision_tokenizer/ibq.py. All
have attention in the middle, some also at the coarsest level; LlamaGen's looks codes up on the unit sphere.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAEDecoder

from sjdvp.errors import WeightsError
from sjdvp.models.checkpoints import Checkpoint, Part, load_strict, renamed
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.vq.codebook import Codebook

# Whatever is not of the decoding half: encoder, losses, counters. Official loaders are not strict, so files hold what they like.
UNUSED = r"(?!decoder\.|post_quant_conv\.|quantize\.embedding\.)"


@dataclass(frozen=True, slots=True)
class Variant:
    """What the weights of a family do not tell: how they name the levels, and where codes are looked up."""

    # (name in the layout of JanusVQVAE, number of levels) -> stored name
    stored_name: Callable[[str, int], str]
    unit_sphere: bool


class TamingDecoder(nn.Module):
    """Codes to pixels, in the key layout of JanusVQVAE, whose `up.0` is the coarsest level."""

    def __init__(
        self, config: JanusVQVAEConfig, *, coarsest_attention: bool = True, unit_sphere: bool = True
    ) -> None:
        super().__init__()
        self.quantize = Codebook(config.num_embeddings, config.embed_dim)
        self.post_quant_conv = nn.Conv2d(config.embed_dim, config.latent_channels, 1)
        self.decoder = JanusVQVAEDecoder(config)
        self.unit_sphere = unit_sphere
        if not coarsest_attention:
            self.decoder.up[0].attn = nn.ModuleList()

    @classmethod
    def from_description(cls, values: Mapping[str, Any]) -> "TamingDecoder":
        """Build the module on the meta device from the values of a JanusVQVAEConfig."""
        with torch.device("meta"):
            return cls(JanusVQVAEConfig(**values))

    @classmethod
    def load(cls, stored: Checkpoint, variant: Variant, device: torch.device) -> "TamingDecoder":
        """Build the module from a checkpoint, whose shapes say all about its sizes. Raises WeightsError if it is no such one."""
        what = f"a VQGAN decoder ({stored.where})"
        config = _describe(stored.shapes, variant, what)
        n_levels = len(config.channel_multiplier)
        attends = variant.stored_name("decoder.up.0.attn.0.norm.weight", n_levels) in stored
        with torch.device("meta"):
            decoder = cls(config, coarsest_attention=attends, unit_sphere=variant.unit_sphere)

        def part(name: str) -> Part:
            return Part(variant.stored_name(name, n_levels))

        load_strict(decoder, stored, what, torch.float32, DeviceMap(device), part, ignore=UNUSED)
        return decoder.eval().requires_grad_(False)

    @property
    def pixels_per_token(self) -> int:
        """Pixels along a side of what one code stands for: each level but the coarsest doubles them."""
        return 2 ** (len(self.decoder.up) - 1)

    def codebook(self) -> Tensor:
        """Return the code vectors [V, E], as they are looked up."""
        weight = self.quantize.embedding.weight
        return normalize(weight, dim=-1) if self.unit_sphere else weight

    def forward(self, codes_NHW: Tensor) -> Tensor:
        """Decode codes [N, rows, columns] to pixels [N, 3, height, width] around [-1, 1], not clipped."""
        z = self.codebook()[codes_NHW].movedim(-1, 1)
        image: Tensor = self.decoder(self.post_quant_conv(z))
        return image


def _describe(shapes: Mapping[str, torch.Size], variant: Variant, what: str) -> JanusVQVAEConfig:
    """Read the sizes of a decoder off the shapes of its tensors."""
    levels = {
        match[1]
        for match in (re.match(r"decoder\.(?:conv_blocks|up)\.(\d+)\.", name) for name in shapes)
        if match
    }

    def shape(name: str) -> torch.Size:
        stored = variant.stored_name(name, len(levels))
        if stored not in shapes:
            raise WeightsError(
                f"{what}: no {stored} in it", "is this the pixel decoder of this model?"
            )
        return shapes[stored]

    blocks = 0
    while variant.stored_name(f"decoder.up.0.block.{blocks}.conv1.weight", len(levels)) in shapes:
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


LLAMAGEN = Variant(_llamagen_name, unit_sphere=True)
JANUS_HF = Variant(lambda name, n_levels: name, unit_sphere=True)
TAMING = Variant(_finest_first, unit_sphere=False)  # Chameleon's VQGAN, Emu3.5's IBQ
