"""Emu3.5-Image: a Qwen3 decoder with 131,072 image tokens, and an IBQ decoder for pixels.

The prompt ends with the size in tokens and an image token. Image rows follow; each but the last
ends with an end-of-line token. The unconditional branch is a prompt without text (a setting
of the authors' code, `unc_prompt`), or with a negative one. Source:
baaivision/Emu3.5, configs/example_config_t2i.py and src/utils/logits_processor.py.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from transformers import Qwen3Config, Qwen3Model

from sjdvp.config import ModelConfig
from sjdvp.errors import ConfigError, WeightsError
from sjdvp.interfaces import ImageLayout
from sjdvp.models.base import ImageModel
from sjdvp.models.checkpoints import StoredWeight, load_strict, open_checkpoint, read_json
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.emu3 import FILES, open_emu3_tokenizer
from sjdvp.models.image_size import Size, multiples, requested, require
from sjdvp.models.layers import packed
from sjdvp.models.tokenizer import TokenPrompter, emu3_image_ids, encode, special_ids
from sjdvp.models.transformer import Transformer, decoder_fields
from sjdvp.models.vq import TamingDecoder
from sjdvp.models.vq.taming import TAMING
from sjdvp.weights import find_file, locate

PIXELS_PER_TOKEN = 16
RESOLUTION = 1024
# Rows and columns of tokens in the authors' table: 4:3, 21:9, 16:9, 3:2, 1:1, 3:4, 9:16, 2:3.
GRIDS = ((55, 73), (41, 97), (47, 85), (52, 78), (64, 64), (73, 55), (85, 47), (78, 52))
TEMPLATE = (
    "<|extra_203|>You are a helpful assistant for t2i task. USER: {prompt} ASSISTANT: <|extra_100|>"
)
UNCONDITIONAL = "<|extra_203|>You are a helpful assistant. USER: {prompt} ASSISTANT: <|extra_100|>"
MAX_PROMPT = 512  # tokens of a branch; prompts for this model are long
# begin of image, image token, end of line; ids of the released models
_SPECIAL = {"<|image start|>": 151852, "<|image token|>": 151851, "<|extra_200|>": 151846}
_RELEASED_VOCABULARY = 282926


class Emu35Network(nn.Module):
    """The decoder, and the head over the image tokens alone."""

    def __init__(self, config: Qwen3Config, vocab_size: int) -> None:
        super().__init__()
        self.decoder = Qwen3Model(config)
        self.head = nn.Linear(config.hidden_size, vocab_size, bias=False)


def open_emu35(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open Emu3.5-Image."""
    first_size = _size(config)
    weights = locate(config.path, config.revision)
    tokenizer = open_emu3_tokenizer(find_file(weights, FILES, config.tokenizer, "model.tokenizer"))
    pixels = locate(config.vq_decoder, setting="model.vq_decoder").path
    tokens = emu3_image_ids(tokenizer)
    network = _load(weights.path, tokens, device_map, dtype)
    text_embeds = network.decoder.embed_tokens.weight.detach()
    released = _SPECIAL if len(text_embeds) == _RELEASED_VOCABULARY else {}
    begin, image, end_of_line = special_ids(tokenizer, list(_SPECIAL), released, len(text_embeds))
    transformer, head = Transformer(network.decoder), packed(network.head)
    vq_decoder = TamingDecoder.load(open_checkpoint(pixels), TAMING, device_map.device)

    def at_size(width: int, height: int) -> ImageModel:
        _size(replace(config, width=width, height=height))
        rows, columns = height // PIXELS_PER_TOKEN, width // PIXELS_PER_TOKEN
        size = [begin, *encode(tokenizer, f"{rows}*{columns}"), image]
        uncond = [*encode(tokenizer, UNCONDITIONAL.replace("{prompt}", "")), *size]
        return ImageModel(
            name=weights.name,
            revision=weights.revision,
            layout=ImageLayout(rows, columns, len(tokens), row_end=True),
            max_prompt=MAX_PROMPT,
            transformer=transformer,
            prompt=TokenPrompter(
                tokenizer,
                text_embeds,
                TEMPLATE,
                [],
                size,
                lambda ids: uncond,
                MAX_PROMPT,
                UNCONDITIONAL,
            ),
            token_embeds_VD=text_embeds[tokens.start : tokens.stop],
            row_end_D=text_embeds[end_of_line],
            head=head,
            vq_decoder=vq_decoder,
            truncate_pixels=True,
            at_size=at_size,
        )

    return at_size(*first_size)


def _size(config: ModelConfig) -> Size:
    """Return the image size: one of the authors' table, or any whole tokens for resolution null."""
    sizes = [(columns * PIXELS_PER_TOKEN, rows * PIXELS_PER_TOKEN) for rows, columns in GRIDS]
    size = requested(config, sizes[0])
    if config.resolution is None:
        return require(size, multiples(size, PIXELS_PER_TOKEN), "Emu3.5")
    if config.resolution != RESOLUTION:
        hint = f"it is {RESOLUTION}, or null for sizes that the authors' code does not offer"
        raise ConfigError(
            f"no image sizes are known for {config.resolution}", hint, "model.resolution"
        )
    return require(size, sizes, "Emu3.5")


def _load(path: Path, tokens: range, device_map: DeviceMap, dtype: torch.dtype) -> Emu35Network:
    values = read_json(path / "config.json")
    if values.get("model_type") != "Emu3":
        raise WeightsError(
            f"{path} is a {values.get('model_type')} model, not Emu3.5",
            "use the profile of this model",
        )
    config = Qwen3Config(**decoder_fields(values, 1e6))
    if tokens.stop != config.vocab_size:
        raise WeightsError(
            f"{path}: {config.vocab_size} tokens, of which the tokenizer knows {tokens.stop}",
            "is it the tokenizer of this model? see model.tokenizer",
        )
    with torch.device("meta"):
        network = Emu35Network(config, len(tokens))

    def source(name: str) -> StoredWeight:
        if name == "head.weight":
            return StoredWeight("lm_head.weight", lambda w: w[tokens.start : tokens.stop])
        return StoredWeight(name.replace("decoder.", "model.", 1))

    what = f"the Qwen3 decoder of {path.name}"
    load_strict(network, open_checkpoint(path), what, dtype, device_map, source)
    return network.eval().requires_grad_(False)
