"""The decoder of Lumina-mGPT 1 and 2 and of Anole: transformers' Chameleon without its VQ model.

Anole-7B is here too: an image head, and 32 x 32 tokens without row ends.

The weights exist in four formats: Meta's (`consolidated.pth`), and `model.safetensors` with norms
of queries and keys [heads, D] (transformers), [shards, D] (Lumina: one row for each model-parallel
shard) or [D] (Anole's fork of transformers). Meta's and the last store rotary pairs side by side.
Sources: convert_chameleon_weights_to_hf.py of transformers and of Lumina-mGPT.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ChameleonConfig, ChameleonModel

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
    renamed,
)
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.image_size import requested, require
from sjdvp.models.layers import half_split, packed
from sjdvp.models.tokenizer import (
    MAX_PROMPT,
    TokenPrompter,
    chameleon_image_ids,
    open_tokenizer,
    special_ids,
)
from sjdvp.models.transformer import Transformer, decoder_fields
from sjdvp.models.vq import TamingDecoder
from sjdvp.models.vq.taming import TAMING
from sjdvp.weights import find_file, locate

_UNUSED = r"model\.vqmodel\.|rope\.freqs"


class ChameleonNetwork(nn.Module):
    """The decoder, and the head over the image tokens alone."""

    def __init__(self, config: ChameleonConfig, vocab_size: int) -> None:
        super().__init__()
        self.decoder = ChameleonModel(config)
        del self.decoder.vqmodel
        self.head = nn.Linear(config.hidden_size, vocab_size, bias=False)

    @property
    def text_embeds(self) -> Tensor:
        """The input embeddings of the whole vocabulary."""
        return self.decoder.embed_tokens.weight.detach()


def load_chameleon(
    path: Path, tokens: range, device_map: DeviceMap, dtype: torch.dtype
) -> ChameleonNetwork:
    """Load the weights in `path`, in any format; `tokens` are the ids of the image tokens.

    Raises WeightsError when they are another model's, ConfigError for float16, which overflows.
    """
    if dtype == torch.float16:
        raise ConfigError(
            "Chameleon models overflow in fp16", "use --dtype bf16 or fp32", "model.dtype"
        )
    meta = next(
        (
            folder
            for folder in (path, path / "models" / "7b", path / "7b")
            if (folder / "consolidated.pth").is_file()
        ),
        None,
    )
    stored = open_checkpoint(meta / "consolidated.pth" if meta else path)
    config = _from_params(meta, stored) if meta else _from_config(path)
    if tokens.stop > config.vocab_size:
        raise WeightsError(
            f"{path}: the tokenizer has image tokens up to {tokens.stop - 1}, "
            f"the vocabulary ends at {config.vocab_size - 1}"
        )
    with torch.device("meta"):
        network = ChameleonNetwork(config, len(tokens))
    q_norm = (
        "layers.0.attention.q_normalization.weight"
        if meta
        else "model.layers.0.self_attn.q_norm.weight"
    )
    side_by_side = len(stored.shapes.get(q_norm, ())) == 1

    def source(name: str) -> StoredWeight:
        return StoredWeight(
            renamed(name, _META if meta else _HF),
            _change(name, config, tokens, side_by_side=side_by_side),
        )

    load_strict(
        network,
        stored,
        f"the Chameleon decoder of {path.name}",
        dtype,
        device_map,
        source,
        ignore=_UNUSED,
    )
    return network.eval().requires_grad_(False)


def _from_config(folder: Path) -> ChameleonConfig:
    values = read_json(folder / "config.json")
    if values.get("model_type") != "chameleon":
        raise WeightsError(
            f"{folder} is a {values.get('model_type')} model, not Chameleon",
            "use the profile of this model",
        )
    return ChameleonConfig(**decoder_fields(values, 10000.0), vocabulary_map={})


def _from_params(folder: Path, stored: Checkpoint) -> ChameleonConfig:
    values: dict[str, Any] = read_json(folder / "params.json")
    values = values.get("model", values)
    feed_forward = "layers.0.feed_forward.w1.weight"
    if feed_forward not in stored:
        raise WeightsError(
            f"{folder}: no {feed_forward} in consolidated.pth", "is it a Chameleon model?"
        )
    return ChameleonConfig(
        vocab_size=stored.shapes["tok_embeddings.weight"][0],
        hidden_size=values["dim"],
        intermediate_size=stored.shapes[feed_forward][0],
        num_hidden_layers=values["n_layers"],
        num_attention_heads=values["n_heads"],
        num_key_value_heads=values.get("n_kv_heads") or values["n_heads"],
        rms_norm_eps=values["norm_eps"],
        swin_norm=values.get("swin_norm", False),
        vocabulary_map={},
        **decoder_fields({"rope_theta": values.get("rope_theta")}, 10000.0),
    )


_HF = (("decoder.", "model."), ("head.", "lm_head."))
_META = (
    ("decoder.embed_tokens.", "tok_embeddings."),
    ("decoder.", ""),
    ("head.", "output."),
    ("self_attn.q_norm", "attention.q_normalization"),
    ("self_attn.k_norm", "attention.k_normalization"),
    ("self_attn.q_proj", "attention.wq"),
    ("self_attn.k_proj", "attention.wk"),
    ("self_attn.v_proj", "attention.wv"),
    ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("post_attention_layernorm", "ffn_norm"),
    ("input_layernorm", "attention_norm"),
)


def _change(
    name: str, config: ChameleonConfig, tokens: range, *, side_by_side: bool
) -> Callable[[Tensor], Tensor] | None:
    """Return the change to the stored tensor of the weight `name`."""
    if name.startswith("head."):
        return lambda w: w[tokens.start : tokens.stop]
    heads = (
        config.num_attention_heads
        if ".q_" in name
        else config.num_key_value_heads or config.num_attention_heads
    )
    if "_norm." in name and ".self_attn." in name:
        return (
            (lambda w: half_split(w, 1).expand(heads, -1))
            if side_by_side
            else (lambda w: _for_each_head(w, heads))
        )
    if side_by_side and (".q_proj." in name or ".k_proj." in name):
        return lambda w: half_split(w, heads)
    return None


def _for_each_head(rows: Tensor, n_heads: int) -> Tensor:
    """Repeat the row of each shard [shards, D] for the heads of that shard [heads, D]."""
    return rows.repeat_interleave(n_heads // len(rows), 0)


PIXELS_PER_TOKEN = 16
_EXPECTED = {"<s>": 0, "<reserved08706>": 8710, "<racm3:break>": 8197}


def open_anole(config: ModelConfig, device_map: DeviceMap, dtype: torch.dtype) -> ImageModel:
    """Open Anole, in Meta's format or in that of transformers.

    With a text-only prompt the official guidance of three branches is uncond + s_txt (cond -
    uncond), where uncond is [begin of text, begin of image]. Source: GAIR-NLP/anole,
    chameleon/inference/chameleon.py and logits_processor.py.
    """
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
