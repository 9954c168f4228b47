"""Anole against the official code: parity folder anole_meta, and other formats of its weights."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sjdvp.config import ModelConfig, SamplingConfig
from sjdvp.models import open_model
from sjdvp.models.base import ImageModel
from sjdvp.models.layers import half_split
from sjdvp.sampling import to_probs
from tests.models.harness import (
    CPU,
    PARITY,
    assert_greedy,
    assert_same_noise,
    forced_S,
    golden,
    teacher_forced,
    worst,
)
from tests.models.tiny import chameleon_tokenizer

META = PARITY / "anole_meta"
LAYOUTS = ("meta", "norms of each head", "norms of each shard", "side by side")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("anole")


@cache
def anole(layout: str, folder: Path, side: int = 64) -> ImageModel:
    path = META if layout == "meta" else rewritten(layout, folder / layout)
    tokenizer = chameleon_tokenizer(folder / "text_tokenizer.json")
    pixels = str(PARITY / "chameleon_vqgan" / "vqgan.ckpt")
    model = ModelConfig(
        "anole", str(path), tokenizer=str(tokenizer), vq_decoder=pixels, resolution=side
    )
    return open_model(model, CPU, torch.float32)


def rewritten(layout: str, folder: Path) -> Path:
    """Write the weights in a format of transformers."""
    folder.mkdir()
    names = {
        "wq": "q_proj",
        "wk": "k_proj",
        "wv": "v_proj",
        "wo": "o_proj",
        "q_normalization": "q_norm",
        "k_normalization": "k_norm",
    }
    names |= {
        "attention.": "self_attn.",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w2": "mlp.down_proj",
    }
    names |= {
        "feed_forward.w3": "mlp.up_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    tensors: dict[str, Tensor] = {"model.vqmodel.quantize.embedding.weight": torch.zeros(1)}
    for name, tensor in torch.load(
        META / "models" / "7b" / "consolidated.pth", weights_only=True
    ).items():
        if name == "rope.freqs":
            continue
        if layout != "side by side" and (".wq." in name or ".wk." in name):
            tensor = half_split(tensor, 2)
        if layout != "side by side" and "_normalization" in name:
            tensor = half_split(tensor, 1).expand(2 if layout == "norms of each head" else 1, -1)
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        name = {
            "tok_embeddings.weight": "model.embed_tokens.weight",
            "output.weight": "lm_head.weight",
        }.get(name, f"model.{name}")
        tensors[name] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "chameleon",
        "vocab_size": 8832,
        "hidden_size": 16,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
    }
    config |= {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits(layout: str, folder: Path) -> None:
    model = anole(layout, folder)
    inputs, expected = golden("anole_meta")
    columns = inputs["columns"]
    is_code = (columns >= 4) & (columns < 8196)
    prompt = model.prompt.of_ids(inputs["conditional_prompt"].tolist())
    for scale, name in (
        (1, "cond_logits_columns"),
        (0, "uncond_logits_columns"),
        (3, "cfg_logits_columns_s3"),
    ):
        found_SV = teacher_forced(model, [prompt], [inputs["codes"]], scale)[0]
        assert worst(found_SV[:, columns[is_code] - 4], expected[name][:16, is_code]) < (
            1e-3 if scale == 3 else 1e-4
        )


def test_distributions(folder: Path) -> None:
    """CFG, then temperature, then top-p: what is left, and the twelve most probable tokens."""
    model = anole("meta", folder)
    inputs, expected = golden("anole_meta")
    prompt = model.prompt.of_ids(inputs["conditional_prompt"].tolist())
    logits_1SV = teacher_forced(model, [prompt], [inputs["codes"]], 3)
    probs_SV = to_probs(
        logits_1SV, forced_S(model.layout)[None], SamplingConfig(temperature=0.7, top_p=0.9)
    )[0]
    n_kept_S = expected["num_kept_after_T0.7_topp0.9"]
    assert torch.equal((probs_SV > 0).sum(-1), n_kept_S)
    ids, probs = (
        expected["top12_ids_after_T0.7_topp0.9"],
        expected["top12_probs_after_T0.7_topp0.9"],
    )
    for probs_V, ids_K, probs_K in zip(probs_SV, ids, probs, strict=True):
        assert worst(probs_V[ids_K[probs_K > 0] - 4], probs_K[probs_K > 0]) < 1e-4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy(layout: str, folder: Path) -> None:
    model = anole(layout, folder)
    inputs, expected = golden("anole_meta")
    prompt = model.prompt.of_ids(inputs["conditional_prompt"].tolist())
    images = assert_greedy(model, [prompt], [expected["greedy_codes_s3"]], 3)
    assert images[0].image_HWC.shape == (64, 64, 3)


def test_prompt(folder: Path) -> None:
    model = anole("meta", folder)
    prompt = model.prompt("a cat")
    assert prompt.n_tokens == 1 + len("a cat") + 2
    inputs, _ = golden("anole_meta")
    uncond = model.prompt.of_ids(inputs["unconditional_prompt"].tolist()).cond
    assert torch.equal(prompt.uncond.embeds_PD, uncond.embeds_PD)


@pytest.mark.process
def test_same_noise_is_plain_sampling(folder: Path) -> None:
    model = anole("meta", folder, 48)
    prompts = [model.prompt(text) for text in ("a cat", "two dogs on a hill", "z")]
    assert_same_noise(model, prompts, SamplingConfig(cfg_scale=3, temperature=0.7, top_p=0.9))
