"""The MoVQ decoder, whose norms are modulated by codebook vectors: Emu3, Lumina-mGPT-2.0 (MoVQGAN).

Sources: Emu3 tokenizer/modeling_emu3visionvq.py, MoVQGAN models/vqgan.py. Emu3's decoder was made
for video: one latent gives four frames, of which an image is the first; only that one is decoded.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import Emu3VQVAEConfig
from transformers.models.emu3.modeling_emu3 import Emu3VQVAEConv3d, Emu3VQVAEDecoder

from sjdvp.errors import WeightsError
from sjdvp.models.checkpoints import Checkpoint, StoredWeight, load_strict, renamed
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.vq.bands import in_bands
from sjdvp.models.vq.taming import UNUSED, Codebook

# Names in the layout of Emu3VQVAE -> names in the originals.
_ORIGINAL = (
    ("middle_block.attn_norm.", "mid.attn_1.norm."),
    ("middle_block.", "mid."),
    ("up_block.up.", "up."),
    ("q_proj.", "q."),
    ("k_proj.", "k."),
    ("v_proj.", "v."),
    ("out_proj.", "proj_out."),
)


class MovqDecoder(nn.Module):
    """Decodes codes to pixels; named as Emu3VQVAE."""

    def __init__(self, config: Emu3VQVAEConfig, *, video: bool) -> None:
        super().__init__()
        self.quantize = Codebook(config.codebook_size, config.embed_dim)
        convolution: Any = Emu3VQVAEConv3d if video else nn.Conv3d
        kernel = (3 if video else 1, 1, 1)
        self.post_quant_conv = convolution(
            config.embed_dim, config.latent_channels, kernel_size=kernel, stride=(1, 1, 1)
        )
        self.decoder = Emu3VQVAEDecoder(config)
        if not video:
            self.decoder.time_res_stack = nn.ModuleList()

    @classmethod
    def load(cls, stored: Checkpoint, device: torch.device) -> "MovqDecoder":
        """Build the module from a checkpoint of either format; its shapes give all sizes."""
        what = f"a MoVQ decoder ({stored.where})"
        original = not any(name.startswith("decoder.up_block.") for name in stored)
        video = "post_quant_conv.conv.weight" in stored
        config = _describe(stored.shapes, "decoder.up" if original else "decoder.up_block.up", what)
        with torch.device("meta"):
            decoder = cls(config, video=video)
        source = _original_source if original else StoredWeight
        load_strict(
            decoder,
            stored,
            what,
            torch.float32,
            DeviceMap(device),
            source if video else _image_source,
            ignore=UNUSED,
        )
        return decoder.eval().requires_grad_(False)

    def codebook(self) -> Tensor:
        """Return the codebook vectors [V, E]."""
        return self.quantize.embedding.weight

    def forward(self, codes: Tensor, *, bands: bool = False) -> Tensor:
        """Decode codes [N, rows, columns] to pixels [N, 3, height, width], not clipped.

        With `bands` it takes less memory and more time.
        """
        vectors = self.codebook()[codes].movedim(-1, 1)[:, :, None]
        # The layers over time treat both alike.
        both = torch.cat([self.post_quant_conv(vectors), vectors])
        for layer in self.decoder.time_res_stack:
            both = layer(both)
        for layer in self.decoder.time_conv:
            both = silu(layer(both))
        latent, quant = both[:, :, 0].chunk(2)
        hidden = self.decoder.middle_block(self.decoder.conv_in(latent), quant)
        up = self.decoder.up_block.up  # the finest level first
        if not bands or len(up) == 1:
            hidden = self.decoder.norm_out(self.decoder.up_block(hidden, quant), quant)
            image: Tensor = self.decoder.conv_out(silu(hidden))
            return image
        for level in up[:1:-1]:
            hidden = level.upsample(_level(level, hidden, quant))
        hidden = _level(up[1], hidden, quant)
        norms = [norm for block in up[0].block for norm in (block.norm1, block.norm2)]
        norms = [norm.norm_layer for norm in (*norms, self.decoder.norm_out)]

        def finest(hidden: Tensor, start: int, end: int) -> Tensor:
            part = quant[:, :, start:end]
            hidden = _level(up[0], up[1].upsample(hidden), part)
            pixels: Tensor = self.decoder.conv_out(silu(self.decoder.norm_out(hidden, part)))
            return pixels

        return in_bands(finest, norms, hidden, codes.shape[1], 2 ** (len(up) - 1))


def _level(level: Any, hidden: Tensor, quant: Tensor) -> Tensor:
    """Run the blocks of a level, and its attention where it has some."""
    for index, block in enumerate(level.block):
        hidden = block(hidden, quant)
        if len(level.attn) > 0:
            cells = level.attn_norms[index](hidden, quant).flatten(2).transpose(1, 2)
            hidden = hidden + level.attn[index](cells)[0].transpose(1, 2).view(hidden.shape)
    return hidden


def _describe(shapes: Mapping[str, torch.Size], up: str, what: str) -> Emu3VQVAEConfig:
    """Read the sizes of a decoder from its shapes; `up` holds its levels, the finest first."""
    needed = (
        "decoder.conv_in.weight",
        "decoder.conv_out.weight",
        "quantize.embedding.weight",
        f"{up}.0.block.0.conv1.weight",
    )
    for name in needed:
        if name not in shapes:
            raise WeightsError(f"{what}: no {name} in it", "is this the VQ decoder of this model?")
    n_levels = 1 + max(
        int(match[1])
        for match in (re.match(rf"{re.escape(up)}\.(\d+)\.", name) for name in shapes)
        if match
    )
    base = shapes["decoder.conv_out.weight"][1]
    n_codes, embed_dim = shapes["quantize.embedding.weight"]
    config = Emu3VQVAEConfig(
        codebook_size=n_codes,
        embed_dim=embed_dim,
        latent_channels=shapes["decoder.conv_in.weight"][1],
        base_channels=base,
        channel_multiplier=[
            shapes[f"{up}.{level}.block.0.conv1.weight"][0] // base for level in range(n_levels)
        ],
        num_res_blocks=_count(shapes, rf"{re.escape(up)}\.0\.block\.(\d+)\.") - 1,
        attn_resolutions=[
            level
            for level in range(n_levels)
            if any(n.startswith(f"{up}.{level}.attn.") for n in shapes)
        ],
        hidden_size=shapes["decoder.conv_in.weight"][0],
        num_attention_heads=1,
        temporal_downsample_factor=2 ** _count(shapes, r"decoder\.time_conv\.(\d+)\."),
    )
    config._attn_implementation = "sdpa"
    return config


def _count(shapes: Mapping[str, torch.Size], pattern: str) -> int:
    return len({match[1] for match in (re.match(pattern, name) for name in shapes) if match})


def _original_source(name: str) -> StoredWeight:
    """Original files hold the projections of attention as 1x1 convolutions."""
    is_projection = ".attn" in name and "_proj.weight" in name
    name = re.sub(r"up_block\.up\.(\d+)\.attn_norms\.(\d+)\.", r"up.\1.attn.\2.norm.", name)
    return StoredWeight(
        renamed(name, _ORIGINAL), (lambda w: w.flatten(1)) if is_projection else None
    )


def _image_source(name: str) -> StoredWeight:
    """MoVQGAN has no time axis: its 1x1 convolution becomes one with kernel 1 over time."""
    if name == "post_quant_conv.weight":
        return StoredWeight(name, lambda w: w[:, :, None])
    return _original_source(name)
