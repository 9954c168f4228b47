"""LlamaGen, class- and text-conditional: transformers' LlamaModel with LlamaGen's weights and two-dimensional rotary table.

Source: FoundationVision/LlamaGen, autoregressive/models/gpt.py and generate.py. A file holds no configuration: sizes come from its
shapes, the heads from the family's rule (64 dimensions each, the 3B model 100), and the grid from `model.resolution` or the file's
name, because files for different grids have the same shapes.
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
from sjdvp.interfaces import ImageLayout, Prompt, PromptRow
from sjdvp.models import captions
from sjdvp.models.base import ImageModel
from sjdvp.models.checkpoints import Checkpoint, Part, load_strict, open_checkpoint, renamed
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.layers import half_split, packed
from sjdvp.models.sizes import requested, require
from sjdvp.models.t5 import TextEncoder
from sjdvp.models.transformer import Transformer
from sjdvp.models.vq import TamingDecoder
from sjdvp.models.vq.taming import LLAMAGEN
from sjdvp.text import shortened
from sjdvp.weights import find_file, locate

PIXELS_PER_TOKEN = 16
CAPTION_SLOTS = 120


@dataclass(frozen=True)
class ClassPrompter:
    """A prompt is a class number; the unconditional branch is the null class, the last row of the table [N + 1, D]."""

    table: Tensor

    def __call__(self, text: str) -> Prompt:
        """Build both branches. Raises PromptError when the text is no class number."""
        n_classes = len(self.table) - 1
        if not re.fullmatch(r"\s*[0-9]+\s*", text) or int(text) >= n_classes:
            raise PromptError(
                f"prompt {shortened(text)!r} is no class",
                f"this model draws classes: write a number from 0 to {n_classes - 1}",
            )
        cond, uncond = self.table[[int(text)]], self.table[[n_classes]]
        visible_1 = torch.ones(1, dtype=torch.bool, device=self.table.device)
        return Prompt(
            PromptRow(cond, visible_1), PromptRow(uncond, visible_1), n_tokens=1, truncated=False
        )


class CaptionMlp(nn.Module):
    """From text features [P, F] to the embeddings of the caption slots [P, D]; holds the features of no caption."""

    def __init__(self, n_features: int, n_hidden: int) -> None:
        super().__init__()
        self.uncond_embedding = nn.Parameter(torch.empty(CAPTION_SLOTS, n_features))
        self.fc1 = nn.Linear(n_features, n_hidden, bias=False)
        self.fc2 = nn.Linear(n_hidden, n_hidden, bias=False)

    def forward(self, features_PF: Tensor) -> Tensor:
        """Project features."""
        projected: Tensor = self.fc2(gelu(self.fc1(features_PF), approximate="tanh"))
        return projected


@dataclass(frozen=True)
class CaptionPrompter:
    """A prompt is a caption in the last of 120 slots; the free slots before it are hidden, in both branches."""

    encode: Callable[[str], tuple[Tensor, bool]]
    mlp: CaptionMlp

    def __call__(self, text: str) -> Prompt:
        """Build both branches."""
        features_NF, truncated = self.encode(text)
        return self.of_features(features_NF, truncated=truncated)

    @torch.inference_mode()
    def of_features(self, features_NF: Tensor, *, truncated: bool = False) -> Prompt:
        """Build both branches from the features of the caption's tokens [N, F]."""
        n_free = CAPTION_SLOTS - len(features_NF)
        visible_P = torch.arange(CAPTION_SLOTS, device=features_NF.device) >= n_free
        cond = PromptRow(self.mlp(pad(features_NF, (0, 0, n_free, 0))), visible_P)
        return Prompt(
            cond,
            PromptRow(self.mlp(self.mlp.uncond_embedding), visible_P),
            len(features_NF),
            truncated,
        )


class TableRotary(nn.Module):
    """Rotary angles looked up by position: cos = sin = 0 for condition slots, row and column for tokens in raster order."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, side: int, n_condition: int, base: float = 10000.0) -> None:
        super().__init__()
        freqs = base ** (-torch.arange(head_size // 4) / (head_size // 4))
        place = torch.arange(side, dtype=torch.float32)[:, None] * freqs
        rows, columns = place.repeat_interleave(side, 0), place.repeat(side, 1)
        angles = torch.cat([rows, columns, rows, columns], -1)
        self.register_buffer("cos", pad(angles.cos(), (0, 0, n_condition, 0)), persistent=False)
        self.register_buffer("sin", pad(angles.sin(), (0, 0, n_condition, 0)), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [R, W, head size] in the dtype of x; a window may kv_bucket past the image, where any angle will do."""
        index = position_ids.clamp(max=len(self.cos) - 1)
        return self.cos[index].to(x.dtype), self.sin[index].to(x.dtype)


class _Network(nn.Module):
    """All weights of a file, under names of ours."""

    def __init__(self, config: LlamaConfig, condition: nn.Module) -> None:
        super().__init__()
        self.decoder = LlamaModel(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.condition: Any = condition  # the class table, or CaptionMlp


def open_classes(config: ModelConfig, place: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open a class-conditional model (c2i)."""
    network, adapt = _open(config, "c2i", place, dtype)
    return adapt(1, ClassPrompter(network.condition.weight.detach()))


def open_captions(config: ModelConfig, place: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open a text-conditional model (t2i) with its text encoder."""
    clean = captions.cleaner() if config.clean_captions else captions.plain
    network, adapt = _open(config, "t2i", place, dtype)
    text_encoder = locate(config.text_encoder, setting="model.text_encoder").path
    encoder = TextEncoder(text_encoder, clean, CAPTION_SLOTS, place.device, dtype)
    wanted = network.condition.fc1.in_features
    if encoder.n_features != wanted:
        raise WeightsError(
            f"the text encoder gives {encoder.n_features} features, the model reads {wanted}",
            "take flan-t5-xl",
        )
    return replace(
        adapt(CAPTION_SLOTS, CaptionPrompter(encoder, network.condition)),
        n_prompt_bytes=encoder.n_bytes,
    )


def _open(
    config: ModelConfig, kind: str, place: DeviceMap, dtype: torch.dtype
) -> tuple[_Network, Callable[[int, Callable[[str], Prompt]], ImageModel]]:
    """Load the weights; return them and what makes the adapter, given the condition slots and the prompter."""
    weights = locate(config.path, config.revision)
    path = _pick_file(weights.path, kind)
    side = _side(config, path)
    network = _load(open_checkpoint(path), kind, config.heads, place, dtype)
    pixel_file = find_file(weights, [f"vq_ds16_{kind}.pt"], config.vq_decoder, "model.vq_decoder")
    vq_decoder = TamingDecoder.load(open_checkpoint(pixel_file), LLAMAGEN, place.device)

    def adapt(n_condition: int, prompter: Callable[[str], Prompt]) -> ImageModel:
        rotary = TableRotary(network.decoder.config.head_dim or 0, side, n_condition)
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

    return network, adapt


def _pick_file(path: Path, kind: str) -> Path:
    if path.is_file():
        return path
    files = sorted(path.glob(f"{kind}_*.pt"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise WeightsError(
            f"{path}: which weights? found {names} named {kind}_*.pt", "give --model one FILE.pt"
        )
    return files[0]


def _side(config: ModelConfig, path: Path) -> int:
    """Return the tokens along one side. The grid is not in the weights; a wrong one gives zoomed images and no error."""
    named = re.search(r"_(\d+)$", path.stem)
    resolution = config.resolution or (int(named[1]) if named else None)
    if resolution is None:
        raise ConfigError(
            f"{path.name} does not tell its image size",
            "set model.resolution (256, 384 or 512)",
            "model.resolution",
        )
    if named and int(named[1]) != resolution:
        raise WeightsError(
            f"{path.name} is for {named[1]}-pixel images by its name; the settings ask for {resolution}",
            "take the profile of this file (stage 1 is 256, stage 2 is 512), or set model.resolution",
        )
    require(
        requested(config, (resolution, resolution)),
        [(resolution, resolution)],
        f"LlamaGen trained at {resolution}",
    )
    return resolution // PIXELS_PER_TOKEN


def _load(
    stored: Checkpoint, kind: str, heads: int | None, place: DeviceMap, dtype: torch.dtype
) -> _Network:
    what = f"a LlamaGen {kind} model ({stored.where})"
    shapes = stored.shapes
    if "tok_embeddings.weight" not in shapes or "layers.0.attention.wqkv.weight" not in shapes:
        raise WeightsError(
            f"{stored.where} is not {what}: no tok_embeddings or wqkv in it",
            "is it the image tokenizer (vq_*.pt)?",
        )
    table, features = "cls_embedding.embedding_table.weight", "cls_embedding.cap_proj.fc1.weight"
    if (table if kind == "c2i" else features) not in shapes:
        other = "text-conditional (t2i)" if features in shapes else "class-conditional (c2i)"
        raise WeightsError(
            f"{stored.where} is {other}, the settings ask for {kind}",
            "take the other kind of profile",
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
        network = _Network(config, condition)
    load_strict(
        network, stored, what, dtype, place, lambda name: _part(name, n_heads), ignore="freqs_cis"
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


def _part(name: str, n_heads: int) -> Part:
    """Name the stored tensor of one of ours; queries, keys and values are stored as one, their rotary pairs side by side."""
    name = renamed(name, _RENAMED)
    projection = re.search(r"self_attn\.([qkv])_proj", name)
    if projection is None:
        return Part(name)
    third = "qkv".index(projection[1])

    def split(wqkv: Tensor) -> Tensor:
        own = wqkv.chunk(3)[third]
        return own if third == 2 else half_split(own, n_heads)

    return Part(name.replace(projection[0], "attention.wqkv"), split)
