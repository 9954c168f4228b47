"""The stored format ``sjdvp.model/1``: one folder that the adapter opens.

Knows the shapes of the two networks and the files they are kept in, not how they are trained.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import JanusVQVAEConfig, LlamaConfig, LlamaForCausalLM

from sjdvp.models.vq import TamingDecoder
from training.emoji.captions import BOI, BOS, PAD

FORMAT = "sjdvp.model/1"
GRID = 16
PIXELS_PER_TOKEN = 8
N_IMAGE_TOKENS = 4096
MAX_PROMPT_TOKENS = 32
HEAD_SIZE = 64
# The fourth frequency turns once in a row of 16 tokens: its phase relative to the last prompt token
# is the column. With the usual 10,000 no frequency does, and objects begin in wrong columns.
ROPE_THETA = (GRID / (2 * math.pi)) ** (HEAD_SIZE / 2 / 3)
LICENCE = "Apache-2.0 (weights, Noto emoji art); MIT (emojibase names)"
VQ_DECODER: dict[str, Any] = {
    "embed_dim": 64,
    "num_embeddings": N_IMAGE_TOKENS,
    "latent_channels": 128,
    "base_channels": 64,
    "channel_multiplier": [1, 1, 2, 4],
    "num_res_blocks": 0,
    "num_patches": GRID,
    "in_channels": 3,
    "out_channels": 3,
    "double_latent": False,
    "dropout": 0.0,
}


def transformer_config(n_text: int) -> LlamaConfig:
    """Describe the transformer; its vocabulary has text words first, image tokens last."""
    return LlamaConfig(
        vocab_size=n_text + N_IMAGE_TOKENS,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=None,
        pad_token_id=PAD,
        attention_dropout=0.0,
    )


def build_transformer(n_text: int) -> LlamaForCausalLM:
    """Build a freshly initialised transformer."""
    return LlamaForCausalLM(transformer_config(n_text))


def build_pixels() -> TamingDecoder:
    """Build a VQ decoder with weights still to be set."""
    return TamingDecoder(JanusVQVAEConfig(**VQ_DECODER))


def write(
    folder: Path,
    transformer: LlamaForCausalLM,
    pixels: TamingDecoder,
    tokenizer: Tokenizer,
    defaults: dict[str, float],
) -> None:
    """Write all files of a model folder, weights in half precision."""
    folder.mkdir(parents=True, exist_ok=True)
    n_text = tokenizer.get_vocab_size()
    half = LlamaForCausalLM(transformer.config)
    half.load_state_dict(transformer.state_dict())
    half.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file(
        {k: v.half().contiguous() for k, v in pixels.state_dict().items()},
        folder / "vq_decoder.safetensors",
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
    (folder / "sjdvp.json").write_text(
        json.dumps(_card(n_text, defaults), indent=2) + "\n", "utf-8"
    )


def _card(n_text: int, defaults: dict[str, float]) -> dict[str, Any]:
    """Say what the adapter must know beyond the two networks."""
    return {
        "format": FORMAT,
        "name": "emoji",
        "family": "llama",
        "licence": LICENCE,
        "grid": {"rows": GRID, "columns": GRID},
        "pixels_per_token": PIXELS_PER_TOKEN,
        "vocab_size": N_IMAGE_TOKENS,
        "first_image_id": n_text,
        "bos_id": BOS,
        "boi_id": BOI,
        "max_prompt_tokens": MAX_PROMPT_TOKENS,
        "vq_decoder": {"family": "taming", **VQ_DECODER},
        "defaults": defaults,
    }
