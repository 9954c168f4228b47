"""A tiny model folder in the format of the embedded one, with random weights: the whole road in
milliseconds.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import JanusVQVAEConfig, LlamaConfig, LlamaForCausalLM

from sjdvp.models.vq import TamingDecoder

WORDS = ["[UNK]", "<bos>", "<boi>", "red", "blue", "dog", "cat", "on", "a"]
VOCAB_SIZE = 24
PIXELS = {
    "embed_dim": 8, "num_embeddings": VOCAB_SIZE, "latent_channels": 32, "base_channels": 32,
    "channel_multiplier": [1, 1],
    "num_res_blocks": 1, "num_patches": 4, "in_channels": 3, "out_channels": 3,
    "double_latent": False, "dropout": 0.0,
}  # fmt: skip


def save_tiny_model(folder: Path, rows: int = 4, columns: int = 5) -> Path:
    """Write a model with 24 tokens on a grid of rows x columns."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS) + VOCAB_SIZE, hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=64, initializer_range=0.4, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(
        WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(
        TamingDecoder(JanusVQVAEConfig(**PIXELS)).state_dict(), folder / "vq_decoder.safetensors"
    )
    about = {
        "format": "sjdvp.model/1", "name": "tiny", "family": "llama", "licence": "none",
        "grid": {"rows": rows, "columns": columns},
        "pixels_per_token": 2, "vocab_size": VOCAB_SIZE, "first_image_id": len(WORDS),
        "bos_id": 1, "boi_id": 2, "max_prompt_tokens": 8,
        "vq_decoder": {"family": "taming", **PIXELS},
    }  # fmt: skip
    (folder / "sjdvp.json").write_text(json.dumps(about), encoding="utf-8")
    return folder
