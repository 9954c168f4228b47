"""GLM-Image, the half that decodes tokens: a preview of the image, then the image itself.

`GlmImageForConditionalGeneration` of transformers, without its vision tower. Rotary positions have
three parts: temporal, height and width. A prompt token has the same number in all three; a grid
that starts at number p has p, p + row and p + column, and p grows by the larger side after it. Only
differences count. So prompts are padded in front to one length, and a table by cache slot holds
the angles: positions and slots need not be told apart.

A diffusion transformer turns the tokens into pixels: `GlmImagePipeline` of diffusers, see
docs/examples/glm_image_pixels.py. Sources: transformers models/glm_image, diffusers
pipelines/glm_image.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.models.glm_image.configuration_glm_image import GlmImageTextConfig
from transformers.models.glm_image.modeling_glm_image import (
    GlmImageTextModel,
    GlmImageTextRotaryEmbedding,
)

from sjdvp.config import ModelConfig
from sjdvp.errors import PromptError, WeightsError
from sjdvp.interfaces import EncodedPrompt, ImageLayout, PromptBranch
from sjdvp.models.base import ImageModel
from sjdvp.models.checkpoints import StoredWeight, load_strict, open_checkpoint, read_json
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.image_size import multiples, requested, require
from sjdvp.models.layers import TableRotary, packed
from sjdvp.models.tokenizer import encode, open_tokenizer, shorten, special_ids
from sjdvp.models.transformer import Transformer
from sjdvp.weights import find_file, locate

PIXELS_PER_TOKEN = 32
MAX_PROMPT = 512  # tokens of a prompt, sizes included
_PREVIEW_SIDE = 16  # tokens along a side of the preview of a square image
_SPECIAL = {"<sop>": 167845, "<eop>": 167846, "<|dit_token_16384|>": 16384}  # released ids
_RELEASED_VOCABULARY = 168064


class GlmNetwork(nn.Module):
    """The decoder, and the head over the image tokens alone."""

    def __init__(self, config: GlmImageTextConfig, vocab_size: int) -> None:
        super().__init__()
        self.decoder = GlmImageTextModel(config)
        self.head = nn.Linear(config.hidden_size, vocab_size, bias=False)


@dataclass(frozen=True)
class PaddedPrompter:
    """A prompt is text and `end`, the sizes and begin of image, in the last of MAX_PROMPT slots.

    The unconditional branch has no text. (The authors use no CFG in this half.)
    """

    tokenizer: Tokenizer
    text_embeds: Tensor
    end: list[int]

    def __call__(self, text: str, negative: str | None = None) -> EncodedPrompt:
        """Encode a prompt; one that is too long loses the end of its text.

        Raises PromptError for a negative prompt.
        """
        if negative is not None:
            raise PromptError("GLM-Image takes no negative prompt")
        ids, truncated = shorten(encode(self.tokenizer, text.strip()), MAX_PROMPT - len(self.end))
        return self.of_ids([*ids, *self.end], truncated=truncated)

    def of_ids(self, ids: list[int], *, truncated: bool = False) -> EncodedPrompt:
        """Build a prompt from the ids of its conditional branch."""
        return EncodedPrompt(self._branch(ids), self._branch(self.end), len(ids), truncated)

    def _branch(self, ids: list[int]) -> PromptBranch:
        ids_P = torch.tensor(ids, device=self.text_embeds.device)
        n_free = MAX_PROMPT - len(ids)
        visible_P = torch.arange(MAX_PROMPT, device=ids_P.device) >= n_free
        return PromptBranch(pad(self.text_embeds[ids_P], (0, 0, n_free, 0)), visible_P)


def open_glm_image(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open the token half of GLM-Image: its folder `vision_language_encoder`."""
    size = requested(config, (1024, 1024))
    require(size, multiples(size, PIXELS_PER_TOKEN), "GLM-Image")
    columns, rows = (side // PIXELS_PER_TOKEN for side in size)
    weights = locate(config.path, config.revision)
    names = ["tokenizer.json", "../processor/tokenizer.json"]
    tokenizer = open_tokenizer(find_file(weights, names, config.tokenizer, "model.tokenizer"))
    network = _load(weights.path, device_map, dtype)
    text_embeds = network.decoder.embed_tokens.weight.detach()
    released = _SPECIAL if len(text_embeds) == _RELEASED_VOCABULARY else {}
    start, end, boi = special_ids(tokenizer, list(_SPECIAL), released, len(text_embeds))
    layout = ImageLayout(rows, columns, boi, preview=preview_size(rows, columns))
    if network.head.out_features != boi:
        raise WeightsError(
            f"{weights.path}: {network.head.out_features} image tokens, the tokenizer has {boi}",
            "is it the tokenizer of this model? see model.tokenizer",
        )
    sizes = [
        token_id
        for grid in ((rows, columns), layout.preview)
        for token_id in (start, *encode(tokenizer, f"{grid[0]} {grid[1]}"), end)
    ]
    return ImageModel(
        name=weights.name,
        revision=weights.revision,
        layout=layout,
        max_prompt=MAX_PROMPT,
        transformer=Transformer(network.decoder, _rotary(network.decoder.config, layout)),
        prompt=PaddedPrompter(tokenizer, text_embeds, [*sizes, boi]),
        token_embeds_VD=text_embeds[:boi],
        row_end_D=None,
        head=packed(network.head),
        vq_decoder=None,
        truncate_pixels=False,
    )


def preview_size(rows: int, columns: int) -> tuple[int, int]:
    """Return rows and columns of the preview: about 256 tokens of the same aspect ratio."""
    ratio = rows / columns
    return int(math.sqrt(ratio) * _PREVIEW_SIDE), int(math.sqrt(1 / ratio) * _PREVIEW_SIDE)


def positions(layout: ImageLayout, start: int) -> Tensor:
    """Return temporal, height and width position of each image position [3, S], from `start` on."""
    grids = []
    for rows, columns in (layout.preview, (layout.rows, layout.columns)):
        index = torch.arange(rows * columns)
        offsets = torch.stack([torch.zeros_like(index), index // columns, index % columns])
        grids.append(start + offsets)
        start += max(rows, columns)
    return torch.cat(grids, 1)


class _GlmRotary(TableRotary):
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin; transformers repeats the cache slots for the three parts."""
        return super().forward(x, position_ids[0])


def _rotary(config: Any, layout: ImageLayout) -> TableRotary:
    prompt = torch.arange(-MAX_PROMPT, 0).expand(3, -1)  # small numbers give exact angles
    position_ids = torch.cat([prompt, positions(layout, 0)], 1)[:, None]
    cos, sin = GlmImageTextRotaryEmbedding(config)(torch.zeros(1), position_ids)
    return _GlmRotary(cos[0], sin[0])


def _load(path: Path, device_map: DeviceMap, dtype: torch.dtype) -> GlmNetwork:
    values = read_json(path / "config.json")
    if values.get("model_type") != "glm_image":
        raise WeightsError(
            f"{path} is a {values.get('model_type')} model, not GLM-Image",
            "give --model the folder vision_language_encoder of GLM-Image",
        )
    config = GlmImageTextConfig(**values["text_config"])
    n_tokens = values["image_start_token_id"]  # the image tokens are the ids before it
    with torch.device("meta"):
        network = GlmNetwork(config, n_tokens)

    def source(name: str) -> StoredWeight:
        if name == "head.weight":
            return StoredWeight("lm_head.weight", lambda w: w[:n_tokens])
        return StoredWeight(name.replace("decoder.", "model.language_model.", 1))

    what = f"the decoder of {path.name}"
    others = r"model\.(visual|vqmodel)\."
    load_strict(network, open_checkpoint(path), what, dtype, device_map, source, ignore=others)
    return network.eval().requires_grad_(False)
