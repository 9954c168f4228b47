"""Anole-7B: Chameleon with an image head. An image is 32 x 32 tokens without row ends.

With a text-only prompt the official guidance of three branches is uncond + s_txt (cond - uncond),
where uncond is [begin of text, begin of image]. Source: GAIR-NLP/anole,
chameleon/inference/chameleon.py and logits_processor.py.
"""

import torch

from sjdvp.config import ModelConfig
from sjdvp.interfaces import ImageLayout
from sjdvp.models.base import ImageModel
from sjdvp.models.chameleon import load_chameleon
from sjdvp.models.checkpoints import open_checkpoint
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.image_size import requested, require
from sjdvp.models.layers import packed
from sjdvp.models.tokenizer import (
    MAX_PROMPT,
    TokenPrompter,
    chameleon_image_ids,
    open_tokenizer,
    special_ids,
)
from sjdvp.models.transformer import Transformer
from sjdvp.models.vq import TamingDecoder
from sjdvp.models.vq.taming import TAMING
from sjdvp.weights import find_file, locate

PIXELS_PER_TOKEN = 16
_EXPECTED = {"<s>": 0, "<reserved08706>": 8710, "<racm3:break>": 8197}


def open_anole(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open Anole, in Meta's format or in that of transformers."""
    side = config.resolution or 512
    require(requested(config, (side, side)), [(side, side)], "Anole")
    weights = locate(config.path, config.revision)
    names = ("tokenizer/text_tokenizer.json", "text_tokenizer.json", "tokenizer.json")
    tokenizer = open_tokenizer(find_file(weights, names, config.tokenizer, "model.tokenizer"))
    vq_file = find_file(
        weights, ("tokenizer/vqgan.ckpt", "vqgan.ckpt"), config.vq_decoder, "model.vq_decoder"
    )
    tokens = chameleon_image_ids(tokenizer)
    network = load_chameleon(weights.path, tokens, device_map, dtype)
    text_embeds = network.text_embeds
    bos, separator, begin = special_ids(tokenizer, list(_EXPECTED), _EXPECTED, len(text_embeds))
    return ImageModel(
        name=weights.name,
        revision=weights.revision,
        layout=ImageLayout(side // PIXELS_PER_TOKEN, side // PIXELS_PER_TOKEN, len(tokens)),
        max_prompt=MAX_PROMPT,
        transformer=Transformer(network.decoder),
        prompt=TokenPrompter(
            tokenizer, text_embeds, "{prompt}", [bos], [separator, begin], lambda ids: [bos, begin]
        ),
        token_embeds_VD=text_embeds[tokens.start : tokens.stop],
        row_end_D=None,
        head=packed(network.head),
        vq_decoder=TamingDecoder.load(open_checkpoint(vq_file), TAMING, device_map.device),
        truncate_pixels=True,
    )
