"""LlamaGen, class- and text-conditional: LlamaModel with a two-dimensional rotary table.

Source: FoundationVision/LlamaGen, autoregressive/models/gpt.py and generate.py. A file has no
configuration. Sizes come from its shapes, the number of heads from the family's rule (64 dimensions
each, 100 in the 3B model), and the image size from `model.resolution` or the file's name, because
files for different image sizes have the same shapes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad
from transformers import LlamaConfig, LlamaModel

from sjdvp.config import ModelConfig
from sjdvp.errors import ConfigError, PromptError, WeightsError
from sjdvp.interfaces import EncodedPrompt, ImageLayout, PromptBranch
from sjdvp.models.base import ImageModel, Prompter
from sjdvp.models.checkpoints import Checkpoint, StoredWeight, load_strict, open_checkpoint, renamed
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.image_size import requested, require
from sjdvp.models.layers import TableRotary, half_split, packed
from sjdvp.models.t5 import TextEncoder, caption_cleaner, lower_case
from sjdvp.models.transformer import Transformer
from sjdvp.models.vq import TamingDecoder
from sjdvp.models.vq.taming import LLAMAGEN
from sjdvp.text import shortened
from sjdvp.weights import find_file, locate

PIXELS_PER_TOKEN = 16
CAPTION_SLOTS = 120


@dataclass(frozen=True)
class ClassPrompter:
    """A prompt is a class number; the table [N + 1, D] ends with the unconditional class."""

    table: Tensor

    def __call__(self, text: str, negative: str | None = None) -> EncodedPrompt:
        """Build both branches. Raises PromptError when the text is not a class number."""
        _refuse(negative)
        n_classes = len(self.table) - 1
        if not re.fullmatch(r"\s*[0-9]+\s*", text) or int(text) >= n_classes:
            raise PromptError(
                f"prompt {shortened(text)!r} is not a class number",
                f"this model takes class numbers from 0 to {n_classes - 1}",
            )
        cond, uncond = self.table[[int(text)]], self.table[[n_classes]]
        visible_1 = torch.ones(1, dtype=torch.bool, device=self.table.device)
        return EncodedPrompt(
            PromptBranch(cond, visible_1),
            PromptBranch(uncond, visible_1),
            n_tokens=1,
            truncated=False,
        )


class CaptionMlp(nn.Module):
    """From text features [P, F] to embeddings [P, D]; holds the features of an empty caption."""

    def __init__(self, n_features: int, n_hidden: int) -> None:
        super().__init__()
        self.uncond_embedding = nn.Parameter(torch.empty(CAPTION_SLOTS, n_features))
        self.fc1 = nn.Linear(n_features, n_hidden, bias=False)
        self.fc2 = nn.Linear(n_hidden, n_hidden, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Project features."""
        projected: Tensor = self.fc2(gelu(self.fc1(features), approximate="tanh"))
        return projected


@dataclass(frozen=True)
class CaptionPrompter:
    """A prompt is a caption in the last of 120 slots; both branches hide the slots before it."""

    encode: Callable[[str], tuple[Tensor, bool]]
    mlp: CaptionMlp

    def __call__(self, text: str, negative: str | None = None) -> EncodedPrompt:
        """Build both branches. Raises PromptError for a negative prompt."""
        _refuse(negative)
        features, truncated = self.encode(text)
        return self.of_features(features, truncated=truncated)

    @torch.inference_mode()
    def of_features(self, features: Tensor, *, truncated: bool = False) -> EncodedPrompt:
        """Build both branches from the features of the caption's tokens [N, F]."""
        n_free = CAPTION_SLOTS - len(features)
        visible_P = torch.arange(CAPTION_SLOTS, device=features.device) >= n_free
        cond = PromptBranch(self.mlp(pad(features, (0, 0, n_free, 0))), visible_P)
        return EncodedPrompt(
            cond,
            PromptBranch(self.mlp(self.mlp.uncond_embedding), visible_P),
            len(features),
            truncated,
        )


def _rotary(head_size: int, side: int, n_condition: int, base: float = 10000.0) -> TableRotary:
    """Return the angles by position: row and column; cos = sin = 0 before the image."""
    freqs = base ** (-torch.arange(head_size // 4) / (head_size // 4))
    angle = torch.arange(side, dtype=torch.float32)[:, None] * freqs
    rows, columns = angle.repeat_interleave(side, 0), angle.repeat(side, 1)
    angles = torch.cat([rows, columns, rows, columns], -1)
    before_image = (0, 0, n_condition, 0)
    return TableRotary(pad(angles.cos(), before_image), pad(angles.sin(), before_image))


def _refuse(negative: str | None) -> None:
    if negative is not None:
        raise PromptError("LlamaGen takes no negative prompt: its unconditional branch is learned")


class LlamaGenNetwork(nn.Module):
    """All weights of a file, under our names."""

    def __init__(self, config: LlamaConfig, condition: nn.Module) -> None:
        super().__init__()
        self.decoder = LlamaModel(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.condition: Any = condition  # the class table, or CaptionMlp


def open_llamagen_c2i(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open a class-conditional model (c2i)."""
    network, make = _open(config, "c2i", device_map, dtype)
    return make(1, ClassPrompter(network.condition.weight.detach()))


def open_llamagen_t2i(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open a text-conditional model (t2i) with its text encoder."""
    clean = caption_cleaner() if config.clean_captions else lower_case
    network, make = _open(config, "t2i", device_map, dtype)
    text_encoder = locate(config.text_encoder, setting="model.text_encoder").path
    encoder = TextEncoder(text_encoder, clean, CAPTION_SLOTS, device_map.of_network, dtype)
    wanted = network.condition.fc1.in_features
    if encoder.n_features != wanted:
        raise WeightsError(
            f"the text encoder gives {encoder.n_features} features, the model expects {wanted}",
            "model.text_encoder takes google/flan-t5-xl",
        )
    return replace(
        make(CAPTION_SLOTS, CaptionPrompter(encoder, network.condition)),
        n_prompt_bytes=encoder.n_bytes,
    )


def _open(
    config: ModelConfig, kind: str, device_map: DeviceMap, dtype: torch.dtype
) -> tuple[LlamaGenNetwork, Callable[[int, Prompter], ImageModel]]:
    """Load the weights; return them, and a function from prompt slots and prompter to the model."""
    weights = locate(config.path, config.revision)
    path = _pick_file(weights.path, kind)
    side = _side(config, path)
    network = _load(open_checkpoint(path), kind, config.heads, device_map, dtype)
    vq_file = find_file(weights, [f"vq_ds16_{kind}.pt"], config.vq_decoder, "model.vq_decoder")
    vq_decoder = TamingDecoder.load(open_checkpoint(vq_file), LLAMAGEN, device_map.device)

    def make(n_condition: int, prompter: Prompter) -> ImageModel:
        rotary = _rotary(network.decoder.config.head_dim or 0, side, n_condition)
        return ImageModel(
            name=weights.name if weights.path.is_file() else f"{weights.name}/{path.name}",
            revision=weights.revision,
            layout=ImageLayout(side, side, network.decoder.config.vocab_size),
            max_prompt=n_condition,
            transformer=Transformer(network.decoder, rotary),
            prompt=prompter,
            token_embeds_VD=network.decoder.embed_tokens.weight.detach(),
            row_end_D=None,
            head=packed(network.head),
            vq_decoder=vq_decoder,
            truncate_pixels=False,
        )

    return network, make


def _pick_file(path: Path, kind: str) -> Path:
    if path.is_file():
        return path
    files = sorted(path.glob(f"{kind}_*.pt"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise WeightsError(
            f"{path}: expected one file named {kind}_*.pt, found {names}",
            "give --model one of the files",
        )
    return files[0]


def _side(config: ModelConfig, path: Path) -> int:
    """Return the tokens along one side; a wrong number gives zoomed images and no error."""
    named = re.search(r"_(\d+)$", path.stem)
    resolution = config.resolution or (int(named[1]) if named else None)
    if resolution is None:
        raise ConfigError(
            f"{path.name}: the file name has no image size",
            "set model.resolution (256, 384 or 512)",
            "model.resolution",
        )
    if named and int(named[1]) != resolution:
        raise WeightsError(
            f"{path.name} is for images of {named[1]} pixels, the settings say {resolution}",
            "use the profile of this file (stage 1: 256, stage 2: 512), or set model.resolution",
        )
    require(
        requested(config, (resolution, resolution)),
        [(resolution, resolution)],
        f"LlamaGen trained at {resolution}",
    )
    return resolution // PIXELS_PER_TOKEN


def _load(
    stored: Checkpoint, kind: str, heads: int | None, device_map: DeviceMap, dtype: torch.dtype
) -> LlamaGenNetwork:
    what = f"a LlamaGen {kind} model ({stored.where})"
    shapes = stored.shapes
    if "tok_embeddings.weight" not in shapes or "layers.0.attention.wqkv.weight" not in shapes:
        raise WeightsError(
            f"{stored.where} is not {what}: tok_embeddings or wqkv is missing",
            "is it the VQ decoder (vq_*.pt)?",
        )
    table, features = "cls_embedding.embedding_table.weight", "cls_embedding.cap_proj.fc1.weight"
    if (table if kind == "c2i" else features) not in shapes:
        other = "text-conditional (t2i)" if features in shapes else "class-conditional (c2i)"
        raise WeightsError(
            f"{stored.where} is {other}, the profile is for {kind}",
            f"use a profile for {other}",
        )
    vocab_size, hidden = shapes["tok_embeddings.weight"]
    n_heads = heads or (32 if hidden == 3200 else hidden // 64)
    if n_heads == 0 or hidden % (4 * n_heads):
        raise WeightsError(
            f"{stored.where}: {hidden} dimensions do not divide into {n_heads} heads",
            "set model.heads",
        )
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=shapes["layers.0.feed_forward.w1.weight"][0],
        num_hidden_layers=len(
            {name.split(".")[1] for name in shapes if name.startswith("layers.")}
        ),
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads,
        rms_norm_eps=1e-5,
    )
    with torch.device("meta"):
        condition = (
            nn.Embedding(*shapes[table])
            if kind == "c2i"
            else CaptionMlp(shapes[features][1], hidden)
        )
        network = LlamaGenNetwork(config, condition)
    load_strict(
        network,
        stored,
        what,
        dtype,
        device_map,
        lambda name: _source(name, n_heads),
        ignore="freqs_cis",
    )
    return network.eval().requires_grad_(False)


_RENAMED = (
    ("decoder.embed_tokens.", "tok_embeddings."),
    ("decoder.", ""),
    ("head.", "output."),
    ("condition.weight", "cls_embedding.embedding_table.weight"),
    ("condition.fc", "cls_embedding.cap_proj.fc"),
    ("condition.", "cls_embedding."),
    ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("post_attention_layernorm", "ffn_norm"),
    ("input_layernorm", "attention_norm"),
)


def _source(name: str, n_heads: int) -> StoredWeight:
    """Return the source of a weight; queries, keys and values are stored as one tensor."""
    name = renamed(name, _RENAMED)
    projection = re.search(r"self_attn\.([qkv])_proj", name)
    if projection is None:
        return StoredWeight(name)
    third = "qkv".index(projection[1])

    def split(wqkv: Tensor) -> Tensor:
        own = wqkv.chunk(3)[third]
        return own if third == 2 else half_split(own, n_heads)

    return StoredWeight(name.replace(projection[0], "attention.wqkv"), split)
