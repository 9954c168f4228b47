"""Emu3-Gen, in its original format and in that of transformers.

The prompt ends with the size in tokens and an image token. Image rows follow, each ended by an
end-of-line token. The unconditional branch is a negative prompt, the authors' or another. Sources:
baaivision/Emu3, image_generation.py and mllm/processing_emu3.py.
"""

import base64
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from torch import Tensor, nn
from transformers import Emu3TextConfig, Emu3TextModel

from sjdvp.config import ModelConfig
from sjdvp.errors import WeightsError
from sjdvp.interfaces import ImageLayout
from sjdvp.models.base import ImageModel
from sjdvp.models.checkpoints import (
    Checkpoint,
    StoredWeight,
    load_strict,
    open_checkpoint,
    read_json,
)
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.image_size import Size, multiples, requested, require, same_area
from sjdvp.models.layers import packed
from sjdvp.models.tokenizer import (
    MAX_PROMPT,
    TokenPrompter,
    emu3_image_ids,
    encode,
    open_tokenizer,
    special_ids,
)
from sjdvp.models.transformer import Transformer, decoder_fields
from sjdvp.models.vq import MovqDecoder
from sjdvp.weights import find_file, locate

FILES = ("tokenizer.json", "emu3.tiktoken")
VISION_TOKENS = "emu3_vision_tokens.txt"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]


def open_emu3_tokenizer(path: Path) -> Tokenizer:
    """Open one of FILES; a tiktoken file needs VISION_TOKENS beside it.

    Raises WeightsError when a file is missing or cannot be read.
    """
    if path.suffix != ".tiktoken":
        return open_tokenizer(path)
    listed = path.with_name(VISION_TOKENS)
    if not listed.is_file():
        raise WeightsError(f"{path.parent}: no {VISION_TOKENS} beside {path.name}")
    vision = [
        name for line in listed.read_text(encoding="utf-8").splitlines() if (name := line.strip())
    ]
    ranks = _read_ranks(path)
    names = [*_SPECIAL, *vision]
    vocabulary = ranks | {name: len(ranks) + index for index, name in enumerate(names)}
    # tiktoken joins any two neighbours that are a token together, the lowest rank first.
    pairs = ((token[:cut], token[cut:]) for token in ranks for cut in range(1, len(token)))
    merges = [(left, right) for left, right in pairs if left in ranks and right in ranks]
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.normalizer = NFC()
    words = Split(Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    # Prompts hold no image tokens, and searching a text for 131,072 names is slow.
    texts = [name for name in names if not name.startswith("<|visual token ")]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in texts])
    return tokenizer


def _read_ranks(path: Path) -> dict[str, int]:
    """Return the byte pairs of a tiktoken file, a letter for each byte, in order of ids."""
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        ranked = sorted(
            (int(rank), base64.b64decode(token, validate=True)) for token, rank in lines
        )
    except ValueError as error:
        raise WeightsError(f"{path}: not a tiktoken file ({error})", "download it again") from error
    if [rank for rank, _ in ranked] != list(range(len(ranked))):
        raise WeightsError(f"{path}: its token ranks are not 0, 1, 2, …", "download it again")
    return {"".join(_LETTERS[byte] for byte in token): rank for rank, token in ranked}


def _letters() -> dict[int, str]:
    """Return the printable letter of each byte in byte-level vocabularies."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {
        byte: chr(256 + index) for index, byte in enumerate(unseen)
    }


_LETTERS = _letters()


PIXELS_PER_TOKEN = 8
POSITIVE = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
    "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
    "username, blurry."
)
# begin of text, begin of image, image token, end of line; ids of the released models
_RELEASED_IDS = {
    "<|extra_203|>": 151849,
    "<|image start|>": 151852,
    "<|image token|>": 151851,
    "<|extra_200|>": 151846,
}
_RELEASED_VOCABULARY = 184622


class Emu3Network(nn.Module):
    """The decoder, and the head over the image tokens alone."""

    def __init__(self, config: Emu3TextConfig, vocab_size: int) -> None:
        super().__init__()
        self.decoder = Emu3TextModel(config)
        self.head = nn.Linear(config.hidden_size, vocab_size, bias=False)


class Emu3VqDecoder(nn.Module):
    """Emu3's VQ decoder, whose pixels have a mean and a standard deviation for each channel."""

    _mean: Tensor
    _std: Tensor

    def __init__(
        self, decoder: MovqDecoder, mean: list[float], std: list[float], device: torch.device
    ) -> None:
        super().__init__()
        self.decoder = decoder
        for name, values in (("_mean", mean), ("_std", std)):
            constant = torch.tensor(values, device=device).view(1, 3, 1, 1)
            self.register_buffer(name, constant, persistent=False)

    def codebook(self) -> Tensor:
        """Return the codebook vectors [V, E]."""
        return self.decoder.codebook()

    def forward(self, indices: Tensor, *, bands: bool = False) -> Tensor:
        """Decode codebook indices [N, rows, columns] to pixels [N, 3, height, width] in [-1, 1]."""
        return 2 * (self.decoder(indices, bands=bands) * self._std + self._mean) - 1


def open_emu3(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open Emu3-Gen."""
    first_size = _size(config)
    weights = locate(config.path, config.revision)
    tokenizer = open_emu3_tokenizer(find_file(weights, FILES, config.tokenizer, "model.tokenizer"))
    tokens = emu3_image_ids(tokenizer)
    stored = open_checkpoint(weights.path)
    network = _load(weights.path, stored, tokens, device_map, dtype)
    text_embeds = network.decoder.embed_tokens.weight.detach()
    released = _RELEASED_IDS if len(text_embeds) == _RELEASED_VOCABULARY else {}
    bos, begin, image, end_of_line = special_ids(
        tokenizer, list(_RELEASED_IDS), released, len(text_embeds)
    )
    transformer, head = Transformer(network.decoder), packed(network.head)
    vq_decoder = _open_vq_decoder(weights.path, stored, config.vq_decoder, device_map.device)

    def at_size(width: int, height: int) -> ImageModel:
        _size(replace(config, width=width, height=height))
        rows, columns = height // PIXELS_PER_TOKEN, width // PIXELS_PER_TOKEN
        size = [begin, *encode(tokenizer, f"{rows}*{columns}"), image]
        negative = [bos, *encode(tokenizer, NEGATIVE), *size]
        return ImageModel(
            name=weights.name,
            revision=weights.revision,
            layout=ImageLayout(rows, columns, len(tokens), row_end=True),
            max_prompt=max(MAX_PROMPT, len(negative)),
            transformer=transformer,
            prompt=TokenPrompter(
                tokenizer,
                text_embeds,
                "{prompt}" + POSITIVE,
                [bos],
                size,
                lambda ids: negative,
                negative="{prompt}",
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
    """Return the image size; by the official rule where the trained area is known."""
    side = config.resolution or 720
    size = requested(config, (side, side))
    allowed = (
        multiples(size, PIXELS_PER_TOKEN)
        if config.resolution is None
        else [same_area(size, side, PIXELS_PER_TOKEN)]
    )
    return require(size, allowed, "Emu3")


def _load(
    path: Path, stored: Checkpoint, tokens: range, device_map: DeviceMap, dtype: torch.dtype
) -> Emu3Network:
    values = read_json(path / "config.json")
    if values.get("model_type") not in ("Emu3", "emu3"):
        raise WeightsError(
            f"{path} is a {values.get('model_type')} model, not Emu3",
            "use the profile of this model",
        )
    # The padding index matters only in training; its default is beyond a small vocabulary.
    config = Emu3TextConfig(
        **decoder_fields(values.get("text_config") or values, 1e6), pad_token_id=0
    )
    if tokens.stop > config.vocab_size:
        raise WeightsError(
            f"{path}: the tokenizer has image tokens up to {tokens.stop - 1}, "
            f"the vocabulary ends at {config.vocab_size - 1}"
        )
    with torch.device("meta"):
        network = Emu3Network(config, len(tokens))
    # transformers renamed its weights once; both names are on the hub.
    prefixes = (("text_model.model.", "text_model."), ("model.text_model.", ""), ("model.", ""))
    decoder, head = next(
        (p for p in prefixes if f"{p[0]}embed_tokens.weight" in stored), prefixes[-1]
    )

    def source(name: str) -> StoredWeight:
        if name.startswith("head."):
            return StoredWeight(f"{head}lm_head.weight", lambda w: w[tokens.start : tokens.stop])
        return StoredWeight(name.replace("decoder.", decoder, 1))

    load_strict(
        network,
        stored,
        f"the Emu3 decoder of {path.name}",
        dtype,
        device_map,
        source,
        ignore=r"(model\.)?vqmodel\.",
    )
    return network.eval().requires_grad_(False)


def _open_vq_decoder(
    path: Path, stored: Checkpoint, other: str | None, device: torch.device
) -> Emu3VqDecoder:
    """Open the VQ decoder: part of the model in transformers' format, else a model of its own."""
    prefixes = ("vqmodel.", "model.vqmodel.")
    prefix = next((p for p in prefixes if f"{p}quantize.embedding.weight" in stored), None)
    if prefix is None:
        path = locate(other, setting="model.vq_decoder").path
    decoder = MovqDecoder.load(stored.under(prefix) if prefix else open_checkpoint(path), device)
    about = path / "preprocessor_config.json"
    values = read_json(about) if about.is_file() else {}
    return Emu3VqDecoder(
        decoder, values.get("image_mean", [0.5] * 3), values.get("image_std", [0.5] * 3), device
    )
