"""Models of the user: what their folders may hold, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import PhiConfig, PhiForCausalLM

from sjdvp.config import ModelConfig
from sjdvp.errors import ConfigError
from sjdvp.models import open_model
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.generic import load
from sjdvp.models.tokenizer import encode, open_tokenizer
from tests.engine.tiny import save_tiny_model

CPU = torch.device("cpu")


def test_an_image_of_another_size_is_refused(tmp_path: Path) -> None:
    config = ModelConfig("generic", path=str(save_tiny_model(tmp_path)))
    assert open_model(replace(config, width=10, height=8), CPU, torch.float32).name == "tiny"
    with pytest.raises(
        ConfigError, match="no images of 64x64 pixels: tiny generates only"
    ) as refused:
        open_model(replace(config, width=64, height=64), CPU, torch.float32)
    assert refused.value.hint == "give --size 10x8"
    with pytest.raises(ConfigError, match="no images of 64x64 pixels"):
        open_model(ModelConfig(width=64, height=64), CPU, torch.float32)


def test_a_head_that_is_the_table_of_embeddings(tmp_path: Path) -> None:
    """Small Llamas and Qwens store one table for both."""
    whole = load(save_tiny_model(tmp_path), DeviceMap(CPU), torch.float32)
    weights = load_file(tmp_path / "model.safetensors")
    table = weights["model.embed_tokens.weight"]
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    tied = load(tmp_path, DeviceMap(CPU), torch.float32)
    hidden = torch.randn(2, 3, table.shape[1])
    assert torch.equal(tied.token_embeds_VD, whole.token_embeds_VD)
    assert torch.allclose(
        tied.logits(hidden), hidden @ table[-tied.layout.vocab_size :].T, atol=1e-6
    )


def test_what_a_tokenizer_file_says_of_length_is_not_obeyed(tmp_path: Path) -> None:
    """Truncation is sjdvp's, and reported."""
    file = save_tiny_model(tmp_path) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(file))
    assert len(encode(open_tokenizer(file), "a red dog on a cat")) == 6


def test_a_head_with_a_bias(tmp_path: Path) -> None:
    """As Phi has one; head and bias are sliced to the image tokens."""
    about = json.loads((save_tiny_model(tmp_path) / "sjdvp.json").read_text())
    config = PhiConfig(
        vocab_size=about["first_image_id"] + about["vocab_size"],
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = PhiForCausalLM(config)
    model.lm_head.bias.data.normal_()
    model.save_pretrained(tmp_path)
    hidden = torch.randn(2, 3, 32)
    wanted = model.lm_head(hidden)[..., about["first_image_id"] :]
    torch.testing.assert_close(
        load(tmp_path, DeviceMap(CPU), torch.float32).logits(hidden), wanted.detach()
    )


def test_on_a_cpu_products_are_packed_and_norms_are_one_operation() -> None:
    model = open_model(ModelConfig(), CPU, torch.float32)
    parts = [
        type(part).__name__
        for whole in (model.transformer._decoder, model.head)
        for part in whole.modules()
    ]
    assert parts.count("PackedLinear") == 8 * 4 + 1 and parts.count("RmsNorm") == 8 * 2 + 1
    assert not {"Linear", "LlamaRMSNorm"} & {*parts}
