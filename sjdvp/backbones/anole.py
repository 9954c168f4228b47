"""Anole-7B: Chameleon with an image head. A picture is 32 x 32 codes without row ends.

With a text-only prompt the three branches of the official guidance are two: uncond + s_txt (cond - uncond), where uncond is
[begin of text, begin of image]. Source: GAIR-NLP/anole, chameleon/inference/chameleon.py and logits_processor.py.
"""

import torch

from sjdvp.backbones.adapter import Adapter
from sjdvp.backbones.chameleon import load_chameleon
from sjdvp.backbones.checkpoints import open_checkpoint
from sjdvp.backbones.grid import Grid
from sjdvp.backbones.image_tokens import chameleon_codes
from sjdvp.backbones.packed import packed
from sjdvp.backbones.pixels import TamingDecoder
from sjdvp.backbones.pixels.taming import CHAMELEON
from sjdvp.backbones.place import Place
from sjdvp.backbones.prompter import MAX_PROMPT, TokenPrompter
from sjdvp.backbones.sizes import requested, require
from sjdvp.backbones.text import open_tokenizer, special_ids
from sjdvp.backbones.trunk import Trunk
from sjdvp.config import ModelConfig
from sjdvp.weights import find_file, locate

PIXELS_PER_CODE = 16
_EXPECTED = {"<s>": 0, "<reserved08706>": 8710, "<racm3:break>": 8197}


def open_anole(config: ModelConfig, place: Place, dtype: torch.dtype) -> Adapter:
    """Open Anole, in Meta's format or transformers'."""
    side = config.resolution or 512
    require(requested(config, (side, side)), [(side, side)], "Anole")
    weights = locate(config.path, config.revision)
    names = ("tokenizer/text_tokenizer.json", "text_tokenizer.json", "tokenizer.json")
    tokenizer = open_tokenizer(find_file(weights, names, config.tokenizer, "model.tokenizer"))
    pixel_file = find_file(weights, ("tokenizer/vqgan.ckpt", "vqgan.ckpt"), config.pixels, "model.pixels")
    codes = chameleon_codes(tokenizer)
    network = load_chameleon(weights.path, codes, place, dtype)
    embeds_TD = network.embeds_TD
    bos, separator, begin = special_ids(tokenizer, list(_EXPECTED), _EXPECTED, len(embeds_TD))
    return Adapter(
        name=weights.name,
        revision=weights.revision,
        grid=Grid(side // PIXELS_PER_CODE, side // PIXELS_PER_CODE),
        max_prompt=MAX_PROMPT,
        trunk=Trunk(network.decoder),
        prompt=TokenPrompter(tokenizer, embeds_TD, "{prompt}", [bos], [separator, begin], lambda ids: [bos, begin]),
        code_embeds_VD=embeds_TD[codes.start : codes.stop],
        row_end_D=None,
        head=packed(network.head),
        pixel_decoder=TamingDecoder.load(open_checkpoint(pixel_file), CHAMELEON, place.device),
        truncate_pixels=True,
    )
