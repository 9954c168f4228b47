"""Tiny tokenizers for the fixtures, which have none, a tiny Lumina-mGPT-2.0 and a tiny T5."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import T5Config, T5EncoderModel

from tests.models.harness import PARITY

TEXT = "abcdefghijklmnopqrstuvwxyz 0123456789\n:.,*"


def save_tokenizer(path: Path, named: dict[str, int], free: range) -> Path:
    """Write a tokenizer.json with named tokens, and a token for each character at free ids."""
    letters = dict(zip(TEXT, free, strict=False))
    tokenizer = Tokenizer(WordLevel({**named, **letters}, unk_token=TEXT[0]))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.save(str(path))
    return path


def chameleon_tokenizer(path: Path) -> Path:
    """Write the tokenizer of the tiny Chameleon models, with the vocabulary of config.json."""
    config = json.loads((PARITY / "lumina1_lm" / "config.json").read_text())
    return save_tokenizer(path, {**config["vocabulary_map"], "<s>": 0}, range(8200, 8700))


def emu3_tokenizer(path: Path) -> Path:
    """Write the tokenizer of the tiny Emu3 models."""
    vocabulary = json.loads((PARITY / "emu3_gen_hf" / "config.json").read_text())["vocabulary_map"]
    image = vocabulary.pop(
        "<image>"
    )  # transformers' name for the placeholder; the tokenizer calls it otherwise
    return save_tokenizer(path, {**vocabulary, "<|image token|>": image}, range(200))


def janus_tokenizer(path: Path) -> Path:
    """Write the tokenizer of the tiny Janus models."""
    about = json.loads((PARITY / "janus_original_layout" / "meta.json").read_text())
    names = {"<｜begin▁of▁sentence｜>": "bos", "<begin_of_image>": "boi", "<｜▁pad▁｜>": "pad"}
    return save_tokenizer(
        path, {name: about[f"{key}_token_id"] for name, key in names.items()}, range(150)
    )


def liquid_tokenizer(path: Path, n_tokens: int = 192) -> Path:
    """Write the tokenizer of the tiny Liquid model; unused tokens fill its text vocabulary."""
    named = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<boi>": 3}
    unused = {f"<unused{i}>": i for i in (*range(4, 8), *range(8 + len(TEXT), n_tokens))}
    return save_tokenizer(path, {**named, **unused}, range(8, n_tokens))


def glm_image_tokenizer(path: Path) -> Path:
    """Write the tokenizer of the tiny GLM-Image model."""
    about = json.loads((PARITY / "glm_image" / "meta.json").read_text())
    names = {"<sop>": about["sop"], "<eop>": about["eop"], "<|dit_token_16384|>": about["bos"]}
    return save_tokenizer(path, names, range(70, 150))


def lumina2_model(folder: Path) -> Path:
    """Write a Lumina-mGPT-2.0 folder: the tiny Lumina-mGPT 1 with ids and VQ decoder of 2.0."""
    folder.mkdir()
    shutil.copy(PARITY / "lumina2_movq" / "movqgan_270M.ckpt", folder)
    tensors = load_file(PARITY / "lumina1_lm" / "model.safetensors")
    n_tokens, random = 171385, torch.Generator().manual_seed(0)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = torch.randn(n_tokens, tensors[name].shape[1], generator=random)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((PARITY / "lumina1_lm" / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "vocab_size": n_tokens, "vocabulary_map": {}})
    )
    names = {
        "<|endoftext|>": 151643,
        "<racm3:break>": 151665,
        "<reserved08706>": 151668,
        "<reserved08799>": 151670,
    }
    names |= {f"<reserved{8800 + side:05d}>": 151671 + side for side in range(1, 40)}
    save_tokenizer(folder / "tokenizer.json", names, range(200))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


def text_encoder(folder: Path) -> Path:
    """Write a tiny T5 encoder with the features that the LlamaGen fixture expects."""
    config = T5Config(
        vocab_size=60,
        d_model=24,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    T5EncoderModel(config).save_pretrained(folder)
    save_tokenizer(folder / "tokenizer.json", {"<pad>": 0, "</s>": 1}, range(2, 60))
    return folder
