"""Liquid-7B: Gemma with the image tokens of Chameleon's VQGAN behind its text vocabulary.

An image is 32 x 32 tokens without row ends. Head and token embeddings are one table. Source:
FoundationVision/Liquid, evaluation/inference_t2i.py and liquid/train/train.py.
"""

from pathlib import Path

import torch
from torch import nn
from transformers import GemmaConfig, GemmaModel

from sjdvp.config import ModelConfig
from sjdvp.errors import WeightsError
from sjdvp.interfaces import ImageLayout
from sjdvp.models.base import ImageModel
from sjdvp.models.checkpoints import StoredWeight, load_strict, open_checkpoint, read_json
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.image_size import requested, require
from sjdvp.models.layers import packed
from sjdvp.models.tokenizer import MAX_PROMPT, TokenPrompter, encode, open_tokenizer, special_ids
from sjdvp.models.transformer import Transformer, decoder_fields
from sjdvp.models.vq import TamingDecoder
from sjdvp.models.vq.taming import TAMING
from sjdvp.weights import find_file, locate

PIXELS_PER_TOKEN = 16
TEMPLATE = "{prompt} Generate an image based on this description."
UNCONDITIONAL = "<unconditional>"
_EMBEDDINGS, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class LiquidNetwork(nn.Module):
    """The decoder, and the head over the image tokens alone."""

    def __init__(self, config: GemmaConfig, vocab_size: int) -> None:
        super().__init__()
        self.decoder = GemmaModel(config)
        self.head = nn.Linear(config.hidden_size, vocab_size, bias=False)


def open_liquid(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open Liquid-7B."""
    side = config.resolution or 512
    require(requested(config, (side, side)), [(side, side)], "Liquid")
    weights = locate(config.path, config.revision)
    tokenizer = open_tokenizer(
        find_file(weights, ["tokenizer.json"], config.tokenizer, "model.tokenizer")
    )
    pixel_file = find_file(weights, ["vqgan.ckpt"], config.vq_decoder, "model.vq_decoder")
    n_text = tokenizer.get_vocab_size()
    network = _load(weights.path, n_text, device_map, dtype)
    text_embeds = network.decoder.embed_tokens.weight.detach()
    bos, begin = special_ids(tokenizer, ["<bos>", "<boi>"], {"<bos>": 2}, n_text)
    unconditional = [bos, *encode(tokenizer, UNCONDITIONAL), begin]
    return ImageModel(
        name=weights.name,
        revision=weights.revision,
        layout=ImageLayout(
            side // PIXELS_PER_TOKEN, side // PIXELS_PER_TOKEN, len(text_embeds) - n_text
        ),
        max_prompt=MAX_PROMPT,
        transformer=Transformer(network.decoder),
        prompt=TokenPrompter(
            tokenizer, text_embeds, TEMPLATE, [bos], [begin], lambda ids: unconditional
        ),
        token_embeds_VD=text_embeds[n_text:],
        row_end_D=None,
        head=packed(network.head),
        vq_decoder=TamingDecoder.load(open_checkpoint(pixel_file), TAMING, device_map.device),
        truncate_pixels=True,
    )


def _load(path: Path, n_text: int, device_map: DeviceMap, dtype: torch.dtype) -> LiquidNetwork:
    """Load the weights in `path`; the ids from `n_text` on are the image tokens."""
    values = read_json(path / "config.json")
    if values.get("model_type") != "gemma":
        raise WeightsError(
            f"{path} is a {values.get('model_type')} model, not Liquid",
            "use the profile of this model",
        )
    config = GemmaConfig(**decoder_fields(values, 10000.0))
    if n_text >= config.vocab_size:
        raise WeightsError(
            f"{path}: image tokens start at {n_text}, but there are {config.vocab_size} tokens",
            "is it the tokenizer of this model? see model.tokenizer",
        )
    with torch.device("meta"):
        network = LiquidNetwork(config, config.vocab_size - n_text)
    stored = open_checkpoint(path)
    # Gemma scales the embeddings of token ids; the transformer here is given embeddings.
    scale = torch.tensor(config.hidden_size**0.5).to(dtype)

    def source(name: str) -> StoredWeight:
        if name == "decoder.embed_tokens.weight":
            return StoredWeight(_EMBEDDINGS, lambda w: w.to(dtype) * scale)
        if name == "head.weight":
            return StoredWeight(_HEAD if _HEAD in stored else _EMBEDDINGS, lambda w: w[n_text:])
        return StoredWeight(name.replace("decoder.", "model.", 1))

    load_strict(network, stored, f"the Gemma decoder of {path.name}", dtype, device_map, source)
    return network.eval().requires_grad_(False)
