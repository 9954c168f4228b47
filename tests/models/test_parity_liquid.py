"""Liquid against the official code: parity folder liquid."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sjdvp.config import ModelConfig, SamplingConfig
from sjdvp.errors import WeightsError
from sjdvp.interfaces import EncodedPrompt
from sjdvp.models import open_model
from sjdvp.models.base import ImageModel
from sjdvp.sampling import to_probs
from tests.models.harness import (
    CPU,
    PARITY,
    assert_greedy,
    assert_same_noise,
    golden,
    same_pixels,
    teacher_forced,
    worst,
)
from tests.models.tiny import liquid_tokenizer

ABOUT = json.loads((PARITY / "liquid" / "meta.json").read_text())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return liquid_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@cache
def liquid(tokenizer: Path, folder: Path = PARITY / "liquid") -> ImageModel:
    pixels = str(PARITY / "chameleon_vqgan" / "vqgan.ckpt")
    model = ModelConfig(
        "liquid", str(folder), tokenizer=str(tokenizer), vq_decoder=pixels, resolution=64
    )
    return open_model(model, CPU, torch.float32)


def golden_prompts(model: ImageModel) -> list[EncodedPrompt]:
    inputs, _ = golden("liquid")
    return [model.prompt.of_ids(inputs[f"cond_prompt_{row}"].tolist()) for row in range(2)]


def test_logits(tokenizer: Path) -> None:
    model = liquid(tokenizer)
    inputs, expected = golden("liquid")
    prompts = golden_prompts(model)
    for scale, name in ((1, "cond_logits"), (0, "uncond_logits"), (7, "cfg_logits_s7")):
        error = worst(teacher_forced(model, prompts, inputs["codes"], scale), expected[name])
        print(f"liquid, {name}: largest error {error:.1e}")
        assert error < (1e-3 if scale == 7 else 1e-4)


def test_greedy(tokenizer: Path) -> None:
    model = liquid(tokenizer)
    expected = golden("liquid")[1]
    images = assert_greedy(model, golden_prompts(model), expected["greedy_codes_s7"], 7)
    found = torch.stack([torch.from_numpy(image.image_HWC) for image in images])
    assert same_pixels(found, expected["image_of_greedy_uint8_hwc"])


def test_a_head_of_its_own(tokenizer: Path, tmp_path: Path) -> None:
    """A checkpoint may store a head beside the table of embeddings; then the head counts."""
    stored = load_file(PARITY / "liquid" / "model.safetensors")
    head = stored["model.embed_tokens.weight"].clone()
    save_file({**stored, "lm_head.weight": head.neg()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((PARITY / "liquid" / "config.json").read_text())
    model = liquid(tokenizer, tmp_path)
    inputs, expected = golden("liquid")
    found = teacher_forced(model, golden_prompts(model), inputs["codes"], 1)
    assert worst(found, -expected["cond_logits"]) < 1e-4


def test_probabilities() -> None:
    """Temperature, then top-k, then top-p."""
    expected = golden("liquid")[1]
    sampling = SamplingConfig(temperature=0.99, top_k=40, top_p=0.96)
    logits_BSV = expected["cfg_logits_s7"]
    probs_BSV = to_probs(logits_BSV, torch.zeros(2, 16, dtype=torch.bool), sampling)
    assert worst(probs_BSV, expected["probs_T0.99_topk40_topp0.96"]) < 1e-5


def test_prompt(tokenizer: Path) -> None:
    model = liquid(tokenizer)
    inputs, _ = golden("liquid")
    uncond = model.prompt.of_ids(inputs["uncond_prompt"].tolist()).cond
    for row, text in enumerate(ABOUT["texts"]):
        prompt = model.prompt(f" {text}\n")
        ids = inputs[f"cond_prompt_{row}"].tolist()
        assert torch.equal(prompt.cond.embeds_PD, model.prompt.of_ids(ids).cond.embeds_PD)
        assert torch.equal(prompt.uncond.embeds_PD, uncond.embeds_PD)


@pytest.mark.process
def test_same_noise_is_plain_sampling(tokenizer: Path) -> None:
    model = liquid(tokenizer)
    prompts = [model.prompt(text) for text in ("a cat", "two dogs on a hill", "z")]
    assert_same_noise(model, prompts, SamplingConfig(cfg_scale=7, temperature=0.99, top_p=0.96))


def test_a_tokenizer_with_too_many_tokens_is_refused(tmp_path: Path) -> None:
    tokenizer = liquid_tokenizer(tmp_path / "tokenizer.json", n_tokens=256)
    with pytest.raises(WeightsError, match="but there are 256 tokens"):
        liquid(tokenizer)
