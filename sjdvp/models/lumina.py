"""Lumina-mGPT 1 (7B-512/768/1024, 34B-512) and Lumina-mGPT-2.0: Chameleon decoders, many sizes.

After the prompt come the begin of image and the size in units of 32 pixels, height first. Image
rows follow, each ended by a newline token. The unconditional branch is the same sequence from the
begin of image on. Sources: Alpha-VLLM/Lumina-mGPT and Lumina-mGPT-2.0,
lumina_mgpt/inference_solver.py and data/item_processor.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from sjdvp.config import ModelConfig
from sjdvp.errors import WeightsError
from sjdvp.interfaces import ImageLayout
from sjdvp.models.base import ImageModel, VqDecoder
from sjdvp.models.chameleon import load_chameleon
from sjdvp.models.checkpoints import open_checkpoint, read_json
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.image_size import Size, frontier, multiples, requested, require
from sjdvp.models.layers import packed
from sjdvp.models.tokenizer import (
    MAX_PROMPT,
    TokenPrompter,
    chameleon_image_ids,
    open_tokenizer,
    special_ids,
)
from sjdvp.models.transformer import Transformer
from sjdvp.models.vq import MovqDecoder, TamingDecoder
from sjdvp.models.vq.taming import TAMING
from sjdvp.weights import find_file, locate

UNIT = 32  # pixels
TEMPLATE = "Generate an image of {size} according to the following prompt:\n{prompt}"
SEPARATOR, BEGIN, NEWLINE = "<reserved08706>", "<racm3:break>", "<reserved08799>"


@dataclass(frozen=True, slots=True)
class LuminaVersion:
    """The differences between the two versions."""

    resolution: int  # of the default image, in pixels
    pixels_per_token: int
    tokens: Callable[[Tokenizer], range]  # vocabulary ids of the image tokens
    begin_of_text: Callable[[Path], str]  # the token's name, given the tokenizer file
    expected: dict[str, int]  # documented ids
    vq_files: tuple[str, ...]
    open_vq: Callable[[Path, torch.device], VqDecoder]
    truncate_pixels: bool


def _qwen_begin_of_text(tokenizer_file: Path) -> str:
    """Return the token before a prompt: the tokenizer has no begin of text, so the end of text."""
    about = read_json(tokenizer_file.parent / "tokenizer_config.json")
    name = about.get("bos_token") or about.get("eos_token")
    if isinstance(name, dict):  # a token with settings
        name = name.get("content")
    if not isinstance(name, str):
        raise WeightsError(
            f"{tokenizer_file.parent}/tokenizer_config.json names neither bos_token nor eos_token"
        )
    return name


VERSION_1 = LuminaVersion(
    resolution=512,
    pixels_per_token=16,
    tokens=chameleon_image_ids,
    begin_of_text=lambda tokenizer_file: "<s>",
    expected={"<s>": 0, SEPARATOR: 8710, BEGIN: 8197, NEWLINE: 8803},
    vq_files=("vqgan.ckpt", "tokenizer/vqgan.ckpt", "chameleon/tokenizer/vqgan.ckpt"),
    open_vq=lambda path, device: TamingDecoder.load(open_checkpoint(path), TAMING, device),
    truncate_pixels=True,
)
VERSION_2 = LuminaVersion(
    resolution=768,
    pixels_per_token=8,
    # Fixed in the official code: these ids have no names.
    tokens=lambda tokenizer: range(155000, 155000 + 16384),
    begin_of_text=_qwen_begin_of_text,
    expected={BEGIN: 151665, NEWLINE: 151670},
    vq_files=("movqgan_270M.ckpt", "movqgan/270M/movqgan_270M.ckpt"),
    open_vq=lambda path, device: MovqDecoder.load(open_checkpoint(path), device),
    truncate_pixels=False,
)


def open_lumina_1(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open Lumina-mGPT 1."""
    return _open(VERSION_1, config, device_map, dtype)


def open_lumina_2(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open Lumina-mGPT-2.0."""
    return _open(VERSION_2, config, device_map, dtype)


def _open(
    version: LuminaVersion, config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype
) -> ImageModel:
    first_size = _size(config, version)
    weights = locate(config.path, config.revision)
    names = ("tokenizer.json", "text_tokenizer.json", "tokenizer/text_tokenizer.json")
    tokenizer_file = find_file(weights, names, config.tokenizer, "model.tokenizer")
    tokenizer = open_tokenizer(tokenizer_file)
    vq_file = find_file(weights, version.vq_files, config.vq_decoder, "model.vq_decoder")
    network = load_chameleon(weights.path, version.tokens(tokenizer), device_map, dtype)
    text_embeds = network.text_embeds
    tokens = version.tokens(tokenizer)
    transformer, head = Transformer(network.decoder), packed(network.head)
    vq_decoder = version.open_vq(vq_file, device_map.device)

    def at_size(width: int, height: int) -> ImageModel:
        _size(replace(config, width=width, height=height), version)
        size_names = [f"<reserved{8800 + side // UNIT:05d}>" for side in (height, width)]
        special = [version.begin_of_text(tokenizer_file), SEPARATOR, BEGIN, NEWLINE, *size_names]
        bos, separator, begin, newline, *size = special_ids(
            tokenizer, special, version.expected, len(text_embeds)
        )
        image = [begin, *size]
        unit = version.pixels_per_token
        return ImageModel(
            name=weights.name,
            revision=weights.revision,
            layout=ImageLayout(height // unit, width // unit, len(tokens), row_end=True),
            max_prompt=MAX_PROMPT,
            transformer=transformer,
            prompt=TokenPrompter(
                tokenizer,
                text_embeds,
                TEMPLATE.replace("{size}", f"{width}x{height}"),
                [bos],
                [separator, *image],
                lambda ids: image,
            ),
            token_embeds_VD=text_embeds[tokens.start : tokens.stop],
            row_end_D=text_embeds[newline],
            head=head,
            vq_decoder=vq_decoder,
            truncate_pixels=version.truncate_pixels,
            at_size=at_size,
        )

    return at_size(*first_size)


def _size(config: ModelConfig, version: LuminaVersion) -> Size:
    """Return the image size: one seen in training, where the trained resolution is known."""
    side = config.resolution or version.resolution
    size = requested(config, (side, side))
    if config.resolution is None:
        return require(size, multiples(size, UNIT), "Lumina-mGPT")
    return require(
        size, frontier(config.resolution, UNIT), f"Lumina-mGPT trained at {config.resolution}"
    )
