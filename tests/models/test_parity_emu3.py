"""Emu3 against the official code: parity folders emu3_*."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from sjdvp.config import ModelConfig, SamplingConfig
from sjdvp.errors import ConfigError
from sjdvp.interfaces import EncodedPrompt, ImageLayout
from sjdvp.models import open_model
from sjdvp.models.base import ImageModel
from sjdvp.models.emu3 import NEGATIVE, POSITIVE
from sjdvp.models.image_size import same_area
from sjdvp.models.vq import to_uint8
from tests.models.harness import (
    CPU,
    PARITY,
    assert_greedy,
    assert_same_noise,
    forced_S,
    golden,
    same_pixels,
    teacher_forced,
    worst,
)
from tests.models.tiny import emu3_tokenizer

FOLDERS = ["emu3_gen", "emu3_gen_hf"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emu3_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@cache
def emu3(folder: str, tokenizer: Path) -> ImageModel:
    pixels = str(PARITY / "emu3_vision_tokenizer")
    model = ModelConfig(
        "emu3",
        str(PARITY / folder),
        tokenizer=str(tokenizer),
        vq_decoder=pixels,
        width=24,
        height=16,
    )
    return open_model(model, CPU, torch.float32)


def golden_prompts(model: ImageModel) -> list[EncodedPrompt]:
    inputs, _ = golden("emu3_gen")
    prompter = replace(model.prompt, uncond=lambda ids: inputs["negative_prompt"].tolist())
    return [prompter.of_ids(inputs[f"cond_prompt_{row}"].tolist()) for row in range(2)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_logits(folder: str, tokenizer: Path) -> None:
    model = emu3(folder, tokenizer)
    inputs, expected = golden("emu3_gen")
    prompts, free_S = golden_prompts(model), ~forced_S(model.layout)
    assert torch.equal(inputs["body_tokens"][:, :7][:, free_S] - 208, inputs["codes"].flatten(1))
    for scale, name in ((1, "cond_logits"), (0, "uncond_logits"), (3, "cfg_scores_s3")):
        found = teacher_forced(model, prompts, inputs["codes"], scale)[:, free_S]
        wanted = expected[name][:, :7, 208:][:, free_S]
        if (
            scale == 3
        ):  # given as a mix of log-probabilities: the same up to a constant for each position
            found, wanted = found.log_softmax(-1), wanted.log_softmax(-1)
        assert worst(found, wanted) < (1e-3 if scale == 3 else 1e-4)


@pytest.mark.parametrize("folder", FOLDERS)
def test_greedy(folder: str, tokenizer: Path) -> None:
    model = emu3(folder, tokenizer)
    expected = golden("emu3_gen")[1]
    images = assert_greedy(model, golden_prompts(model), expected["greedy_codes_s3"], 3)
    found = torch.stack([torch.from_numpy(image.image_HWC) for image in images])
    wanted = to_uint8(golden("emu3_gen_hf")[1]["decode_image_tokens_of_greedy"], truncate=True)
    assert same_pixels(found, wanted)


@pytest.mark.process
def test_same_noise_is_plain_sampling(tokenizer: Path) -> None:
    model = emu3("emu3_gen", tokenizer)
    prompts = [model.prompt(text) for text in ("a cat", "two dogs on a hill", "z")]
    assert len({prompt.n_tokens for prompt in prompts}) == 3
    assert_same_noise(model, prompts, SamplingConfig(cfg_scale=3, top_k=40))


def test_prompt(tokenizer: Path) -> None:
    model = emu3("emu3_gen", tokenizer)
    prompt = model.prompt(" a cat\n")
    assert prompt.n_tokens == 1 + len("a cat" + POSITIVE) + len("[2*3]")
    assert len(prompt.uncond.visible_P) == 1 + len(NEGATIVE) + len("[2*3]")
    long = model.prompt("a cat " * 500)
    assert (long.n_tokens, long.truncated) == (model.max_prompt, True)
    n_after = len(POSITIVE) + len("[2*3]")
    assert torch.equal(long.cond.embeds_PD[-n_after:], prompt.cond.embeds_PD[-n_after:])


def test_a_negative_prompt_of_ones_own_and_another_size(tokenizer: Path) -> None:
    model = emu3("emu3_gen", tokenizer)
    prompt = model.prompt("a cat", NEGATIVE)
    assert torch.equal(prompt.uncond.embeds_PD, model.prompt("a cat").uncond.embeds_PD)
    prompt = model.prompt("a cat", " blurry ")
    assert len(prompt.uncond.visible_P) == 1 + len("blurry") + len("[2*3]")
    assert model.prompt("a cat", "blurry " * 100).truncated
    assert model.at_size is not None
    other = model.at_size(40, 16)
    assert (other.layout.rows, other.layout.columns) == (2, 5)
    assert other.transformer is model.transformer
    assert len(other.prompt("a cat", "b").uncond.visible_P) == 1 + 1 + len("[2*5]")
    with pytest.raises(ConfigError, match="no images of 41x16 pixels"):
        model.at_size(41, 16)


@pytest.mark.parametrize("size", ["4x4", "3x5"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_pixels(folder: str, size: str, tokenizer: Path) -> None:
    inputs, expected = golden("emu3_vision_tokenizer")
    image = emu3(folder, tokenizer).vq_decoder(inputs[f"codes_{size}"])
    assert worst(image, expected[f"image_{size}"]) < 3e-4
    assert same_pixels(to_uint8(image, truncate=True), expected[f"image_{size}_uint8_hwc"])


def test_allowed_sets_and_size_rule() -> None:
    """Widths of 1 and 2 are left out: the official grammar contradicts itself there."""
    about = json.loads((PARITY / "emu3_grammar" / "grammar.json").read_text())
    n_compared = 0
    for case in about["cases"]:
        for height, width, row in zip(case["height"], case["width"], case["rows"], strict=True):
            steps = row["allowed_per_step_after_img_token"]
            if width > 2:
                forced = forced_S(ImageLayout(height, width, 32768, row_end=True)).tolist()
                decoded = ["eol" if is_forced else "visual" for is_forced in forced]
                assert [*decoded, "eol", "eof", "eoi", "eos"] == steps[: steps.index("eos") + 1]
                n_compared += 1
    assert n_compared
    for rule in about["size_rule"]:
        width, height = map(int, rule["ratio"].split(":"))
        rows, columns = rule["height_width_latent"]
        side = round(rule["image_area"] ** 0.5)
        assert side**2 == rule["image_area"]
        assert same_area((width, height), side, 8) == (8 * columns, 8 * rows)
        assert same_area((8 * columns, 8 * rows), side, 8) == (8 * columns, 8 * rows)
