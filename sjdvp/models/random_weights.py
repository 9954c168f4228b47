"""Models of the published shapes with random weights: for measuring speed where the weights are not.

The transformer is a Llama of the model's depth, widths and heads, the head gives its image tokens, the grid is that of the profile's
images. What is left out costs next to nothing (normalised queries, biases) or is not measured (text, pixels).
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from sjdvp.config import RunConfig
from sjdvp.errors import ConfigError
from sjdvp.interfaces import ImageLayout, Prompt, PromptRow
from sjdvp.models.base import ImageModel
from sjdvp.models.layers import packed
from sjdvp.models.sizes import requested
from sjdvp.models.transformer import Transformer

N_PROMPT = 32  # tokens of the prompt that every text stands for


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model."""

    n_layers: int
    hidden: int
    feed_forward: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    pixels_per_token: int = 16
    row_end: bool = False
    max_prompt: int = 320
    side: int = 512  # of its images in pixels, where the profile leaves that to the model


_CHAMELEON = Shape(32, 4096, 11008, 32, 32, 8192)

SHAPES = {  # by profile
    "emoji": Shape(8, 256, 704, 4, 4, 1024, pixels_per_token=4, max_prompt=32, side=64),
    "lumina-mgpt-7b-*": replace(_CHAMELEON, row_end=True),
    "lumina-mgpt-34b-*": Shape(48, 8192, 22016, 64, 8, 8192, row_end=True),
    "lumina-mgpt-2": replace(_CHAMELEON, vocab_size=16384, pixels_per_token=8, row_end=True),
    "anole-7b": _CHAMELEON,
    "emu3-gen": Shape(32, 4096, 14336, 32, 8, 32768, pixels_per_token=8, row_end=True),
    "emu3.5-image": Shape(64, 5120, 25600, 64, 8, 131072, row_end=True, max_prompt=512),
    "janus-1.3b": Shape(24, 2048, 5632, 16, 16, 16384),
    "janus-pro-1b": Shape(24, 2048, 5632, 16, 16, 16384),
    "janus-pro-7b": Shape(30, 4096, 11008, 32, 32, 16384),
    "liquid-7b": Shape(28, 3072, 24576, 16, 16, 8192),
    "llamagen-c2i-b-*": Shape(12, 768, 2048, 12, 12, 16384, max_prompt=1),
    "llamagen-c2i-l-*": Shape(24, 1024, 2816, 16, 16, 16384, max_prompt=1),
    "llamagen-c2i-xl-*": Shape(36, 1280, 3584, 20, 20, 16384, max_prompt=1),
    "llamagen-c2i-xxl-*": Shape(48, 1536, 4096, 24, 24, 16384, max_prompt=1),
    "llamagen-c2i-3b-*": Shape(24, 3200, 8704, 32, 32, 16384, max_prompt=1),
    "llamagen-t2i-*": Shape(36, 1280, 3584, 20, 20, 16384, max_prompt=120),
}


def shape_of(profile: str) -> Shape:
    """Return the shape of a profile's model. Raises ConfigError when it is not known."""
    found = next((shape for pattern, shape in SHAPES.items() if fnmatch(profile, pattern)), None)
    if found is None:
        raise ConfigError(f"the shape of {profile!r} is not known", f"known: {', '.join(SHAPES)}")
    return found


def tiny(shape: Shape) -> Shape:
    """Return a small model with the grid, tokens and prompt of `shape`: for trying out what is to be run on a large machine."""
    n_kv_heads = max(1, 4 * shape.n_kv_heads // shape.n_heads)
    return replace(shape, n_layers=2, hidden=64, feed_forward=128, n_heads=4, n_kv_heads=n_kv_heads)


def open_stand_in(
    shape: Shape, config: RunConfig, device: torch.device, dtype: torch.dtype
) -> ImageModel:
    """Make a model of that shape for the images of `config`, its weights drawn from a fixed seed."""
    model = config.model
    width, height = requested(model, (shape.side, shape.side))
    layout = ImageLayout(
        height // shape.pixels_per_token,
        width // shape.pixels_per_token,
        shape.vocab_size,
        shape.row_end,
    )
    settings = LlamaConfig(
        vocab_size=1, hidden_size=shape.hidden, intermediate_size=shape.feed_forward, num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads, num_key_value_heads=shape.n_kv_heads, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.device("meta"):
        decoder: Any = LlamaModel(settings)
    decoder = decoder.to(dtype).to_empty(device=device)  # in this order: never in float32
    noise = torch.Generator(device).manual_seed(0)
    for name, weight in decoder.named_parameters():
        _fill(weight.data, noise, 1.0 if "norm" in name else 0.0)
    head = nn.Linear(
        shape.hidden, shape.vocab_size, bias=False, device=device, dtype=dtype
    ).requires_grad_(False)
    embeds_VD = _fill(torch.empty_like(head.weight), noise)
    _fill(head.weight.data, noise)
    n_prompt = min(N_PROMPT, shape.max_prompt)
    branch = PromptRow(embeds_VD[:n_prompt], torch.ones(n_prompt, dtype=torch.bool, device=device))
    return ImageModel(
        name=f"random weights in the shape of {config.profile}",
        revision=None,
        layout=layout,
        max_prompt=shape.max_prompt,
        transformer=Transformer(decoder),
        prompt=lambda text: Prompt(branch, branch, n_prompt, truncated=False),
        token_embeds_VD=embeds_VD,
        row_end_D=embeds_VD[0] if shape.row_end else None,
        head=packed(head),
        vq_decoder=_NoPixels(embeds_VD),
        truncate_pixels=False,
    )


def _fill(weight: Tensor, noise: torch.Generator, mean: float = 0.0) -> Tensor:
    return weight.normal_(mean, 0.02, generator=noise)


class _NoPixels:
    """Grey images; the codebook is noise."""

    def __init__(self, vectors_VE: Tensor) -> None:
        self._vectors_VE = vectors_VE

    def codebook(self) -> Tensor:
        return self._vectors_VE

    def __call__(self, codes_NHW: Tensor) -> Tensor:
        n_images, rows, columns = codes_NHW.shape
        return torch.zeros(n_images, 3, rows, columns, device=codes_NHW.device)
