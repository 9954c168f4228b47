"""Janus against the official code: parity folders janus_original_layout, janus_hf, janus_1."""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch

from sjdvp.config import ModelConfig, SamplingConfig
from sjdvp.errors import WeightsError
from sjdvp.interfaces import EncodedPrompt
from sjdvp.models import open_model
from sjdvp.models.base import ImageModel
from sjdvp.models.vq import to_uint8
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
from tests.models.tiny import janus_tokenizer

FOLDERS = ["janus_original_layout", "janus_hf"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return janus_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@cache
def janus(folder: str, tokenizer: Path, backbone: str = "janus") -> ImageModel:
    model = ModelConfig(backbone, str(PARITY / folder), tokenizer=str(tokenizer), resolution=64)
    return open_model(model, CPU, torch.float32)


def golden_prompts(model: ImageModel, folder: str) -> list[EncodedPrompt]:
    inputs, _ = golden(folder)
    return [model.prompt.of_ids(inputs[f"prompt_{row}"].tolist()) for row in range(2)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_logits(folder: str, tokenizer: Path) -> None:
    model = janus(folder, tokenizer)
    inputs, expected = golden(folder)
    prompts = golden_prompts(model, folder)
    for scale, name in ((1, "cond_logits"), (0, "uncond_logits"), (5, "cfg_logits_s5")):
        found = teacher_forced(model, prompts, inputs["codes"], scale)
        assert worst(found, expected[name]) < (1e-3 if scale == 5 else 1e-4)


@pytest.mark.parametrize("folder", FOLDERS)
def test_greedy(folder: str, tokenizer: Path) -> None:
    model = janus(folder, tokenizer)
    expected = golden(folder)[1]
    images = assert_greedy(model, golden_prompts(model, folder), expected["greedy_codes_s5"], 5)
    found = torch.stack([torch.from_numpy(image.image_HWC) for image in images])
    wanted = golden("janus_original_layout")[1]["image_of_greedy"]
    assert same_pixels(found, to_uint8(wanted, truncate=True))


@pytest.mark.parametrize("folder", FOLDERS)
def test_janus_1(folder: str, tokenizer: Path) -> None:
    """The prompt from its text, the rest as for Janus-Pro."""
    model = janus(folder, tokenizer, "janus-1.3b")
    inputs, expected = golden("janus_1")
    texts = json.loads((PARITY / "janus_1" / "meta.json").read_text())["texts"]
    prompts = [model.prompt(f" {text}\n") for text in texts]
    for row, prompt in enumerate(prompts):
        ids = inputs[f"prompt_{row}"].tolist()
        assert torch.equal(prompt.cond.embeds_PD, model.prompt.of_ids(ids).cond.embeds_PD)
    for scale, name in ((1, "cond_logits"), (0, "uncond_logits"), (5, "cfg_logits_s5")):
        error = worst(teacher_forced(model, prompts, inputs["codes"], scale), expected[name])
        print(f"{folder}, {name}: largest error {error:.1e}")
        assert error < (1e-3 if scale == 5 else 1e-4)
    images = assert_greedy(model, prompts, expected["greedy_codes_s5"], 5)
    found = torch.stack([torch.from_numpy(image.image_HWC) for image in images])
    assert same_pixels(found, expected["image_of_greedy_uint8_hwc"])


def test_janus_1_is_not_opened_as_janus_pro(tmp_path: Path, tokenizer: Path) -> None:
    folder = shutil.copytree(PARITY / "janus_hf", tmp_path / "model")
    (folder / "processor_config.json").write_text(json.dumps({"sft_format": "deepseek_old"}))
    config = ModelConfig("janus", str(folder), tokenizer=str(tokenizer), resolution=64)
    with pytest.raises(WeightsError, match=r"is Janus-1\.3B") as caught:
        open_model(config, CPU, torch.float32)
    assert caught.value.hint == "use --profile janus-1.3b"


@pytest.mark.parametrize("folder", FOLDERS)
def test_pixels(folder: str, tokenizer: Path) -> None:
    model = janus(folder, tokenizer)
    inputs, expected = golden(folder)
    image = model.vq_decoder(inputs["codes"].view(2, 4, 4))
    if folder == "janus_hf":
        assert worst(image.movedim(1, -1), expected["decode_image_tokens_of_codes"]) < 2e-4
    else:
        assert worst(image, expected["image_of_codes"]) < 2e-4
        assert same_pixels(to_uint8(image, truncate=True), expected["image_of_codes_uint8_hwc"])


@pytest.mark.process
@pytest.mark.parametrize("backbone", ["janus", "janus-1.3b"])
def test_same_noise_is_plain_sampling(tokenizer: Path, backbone: str) -> None:
    model = janus("janus_hf", tokenizer, backbone)
    prompts = [model.prompt(text) for text in ("a cat", "two dogs on a hill", "z")]
    assert len({prompt.n_tokens for prompt in prompts}) == 3
    assert_same_noise(model, prompts, SamplingConfig(cfg_scale=5))


def test_prompt(tokenizer: Path) -> None:
    model = janus("janus_hf", tokenizer)
    prompt = model.prompt("cat")
    assert prompt.n_tokens == 1 + len("<|User|>: cat\n\n<|Assistant|>:") + 1
    assert len(prompt.uncond.visible_P) == prompt.n_tokens
    pads = model.prompt.of_ids([150, *[153] * (prompt.n_tokens - 2), 152])
    assert torch.equal(prompt.uncond.embeds_PD, pads.cond.embeds_PD)
    assert prompt.uncond.visible_P.all()
