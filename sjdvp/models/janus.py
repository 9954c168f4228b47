"""Janus-1.3B and Janus-Pro, in their original format and in that of transformers.

They differ only in the roles that their prompts name. Image tokens have their own embeddings and
head. The unconditional branch is as long as the conditional one: all its tokens but the first and
the last are pads, and pads are attended. Sources: deepseek-ai/Janus, generation_inference.py,
models/modeling_vlm.py and utils/conversation.py; transformers, convert_janus_weights_to_hf.py.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import LlamaConfig, LlamaModel

from sjdvp.config import ModelConfig
from sjdvp.errors import ConfigError, WeightsError
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
from sjdvp.models.image_size import requested, require
from sjdvp.models.layers import packed
from sjdvp.models.tokenizer import MAX_PROMPT, TokenPrompter, open_tokenizer, special_ids
from sjdvp.models.transformer import Transformer, decoder_fields
from sjdvp.models.vq import TamingDecoder
from sjdvp.models.vq.taming import JANUS_HF, LLAMAGEN
from sjdvp.weights import find_file, locate

PIXELS_PER_TOKEN = 16
TEMPLATE_1 = "User: {prompt}\n\nAssistant:"
TEMPLATE_PRO = "<|User|>: {prompt}\n\n<|Assistant|>:"
# begin of text, begin of image, pad; ids of the released models
_SPECIAL = {"<｜begin▁of▁sentence｜>": 100000, "<begin_of_image>": 100016, "<｜▁pad▁｜>": 100015}
_RELEASED_VOCABULARY = 102400


class _GeluMlp(nn.Module):
    """Two layers with an exact GELU between them."""

    def __init__(self, n_in: int, n_hidden: int, n_out: int) -> None:
        super().__init__()
        self.first = nn.Linear(n_in, n_hidden)
        self.second = nn.Linear(n_hidden, n_out)

    def forward(self, x: Tensor) -> Tensor:
        second: Tensor = self.second(gelu(self.first(x)))
        return second


class JanusNetwork(nn.Module):
    """The decoder, the embeddings of image tokens and their projection, the image head."""

    def __init__(self, config: LlamaConfig, vocab_size: int, embed_size: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.decoder = LlamaModel(config)
        self.table = nn.Embedding(vocab_size, embed_size)
        self.aligner = _GeluMlp(embed_size, hidden, hidden)
        self.head = _GeluMlp(hidden, hidden, vocab_size)


# Our names -> names in the original format, and in that of transformers.
_ORIGINAL = {
    "decoder.": "language_model.model.",
    "table.": "gen_embed.",
    "aligner.first.": "gen_aligner.layers.0.",
    "aligner.second.": "gen_aligner.layers.2.",
    "head.first.": "gen_head.output_mlp_projector.",
    "head.second.": "gen_head.vision_head.",
}
_TRANSFORMERS = {
    "decoder.": "model.language_model.",
    "table.": "model.generation_embeddings.",
    "aligner.first.": "model.generation_aligner.fc1.",
    "aligner.second.": "model.generation_aligner.hidden_layers.0.",
    "head.first.": "model.generation_head.proj_out.",
    "head.second.": "model.generation_head.vision_head.",
}
# Image understanding, the text head, and the VQ decoder, which is loaded on its own.
_UNUSED = (
    r"vision_model\.|aligner\.|language_model\.lm_head\.|gen_vision_model\."
    r"|model\.(vision_model|aligner|vqmodel)\.|lm_head\."
)


def open_janus_1_3b(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open Janus-1.3B. Raises ConfigError for float16, which overflows."""
    return _open(TEMPLATE_1, config, device_map, dtype)


def open_janus_pro(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open Janus-Pro. Raises ConfigError for float16, which overflows."""
    return _open(TEMPLATE_PRO, config, device_map, dtype)


def _open(
    template: str, config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype
) -> ImageModel:
    if dtype == torch.float16:
        raise ConfigError("Janus overflows in fp16", "use --dtype bf16 or fp32", "model.dtype")
    side = config.resolution or 384
    require(requested(config, (side, side)), [(side, side)], "Janus")
    weights = locate(config.path, config.revision)
    _check_prompt_format(weights.path, template)
    tokenizer = open_tokenizer(
        find_file(weights, ["tokenizer.json"], config.tokenizer, "model.tokenizer")
    )
    stored = open_checkpoint(weights.path)
    original = _is_original(weights.path)
    network = _load(weights.path, stored, device_map, dtype, original=original)
    pixels = stored.under("gen_vision_model." if original else "model.vqmodel.")
    text_embeds = network.decoder.embed_tokens.weight.detach()
    released = _SPECIAL if len(text_embeds) == _RELEASED_VOCABULARY else {}
    bos, begin, pad = special_ids(tokenizer, list(_SPECIAL), released, len(text_embeds))
    return ImageModel(
        name=weights.name,
        revision=weights.revision,
        layout=ImageLayout(
            side // PIXELS_PER_TOKEN, side // PIXELS_PER_TOKEN, network.table.num_embeddings
        ),
        max_prompt=MAX_PROMPT,
        transformer=Transformer(network.decoder),
        prompt=TokenPrompter(
            tokenizer,
            text_embeds,
            template,
            [bos],
            [begin],
            lambda ids: [ids[0], *[pad] * (len(ids) - 2), ids[-1]],
        ),
        token_embeds_VD=network.aligner(network.table.weight).detach(),
        row_end_D=None,
        head=packed(network.head),
        vq_decoder=TamingDecoder.load(
            pixels, LLAMAGEN if original else JANUS_HF, device_map.device
        ),
        truncate_pixels=True,
    )


def _check_prompt_format(path: Path, template: str) -> None:
    """Raise WeightsError when the files say Janus-1.3B and Janus-Pro was asked for."""
    file = path / "processor_config.json"
    named = read_json(file).get("sft_format") if file.is_file() else None
    if named == "deepseek_old" and template != TEMPLATE_1:
        raise WeightsError(f"{path} is Janus-1.3B, not Janus-Pro", "use --profile janus-1.3b")


def _is_original(path: Path) -> bool:
    kind = read_json(path / "config.json").get("model_type")
    if kind not in ("multi_modality", "janus"):
        raise WeightsError(f"{path} is a {kind} model, not Janus", "use the profile of this model")
    return kind == "multi_modality"


def _load(
    path: Path, stored: Checkpoint, device_map: DeviceMap, dtype: torch.dtype, *, original: bool
) -> JanusNetwork:
    names = _ORIGINAL if original else _TRANSFORMERS
    values = read_json(path / "config.json")["language_config" if original else "text_config"]
    table = names["table."] + "weight"
    if table not in stored:
        raise WeightsError(
            f"{path}: no {table} in its weights", "is this a Janus model that generates images?"
        )
    config = LlamaConfig(**decoder_fields(values, 10000.0))
    with torch.device("meta"):
        network = JanusNetwork(config, *stored.shapes[table])

    def source(name: str) -> StoredWeight:
        ours = next(ours for ours in names if name.startswith(ours))
        return StoredWeight(name.replace(ours, names[ours], 1))

    load_strict(
        network,
        stored,
        f"the Janus model of {path.name}",
        dtype,
        device_map,
        source,
        ignore=_UNUSED,
    )
    return network.eval().requires_grad_(False)
