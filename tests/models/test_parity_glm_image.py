"""The token half of GLM-Image against transformers: parity folder glm_image."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from sjdvp.config import ModelConfig, SamplingConfig
from sjdvp.errors import ConfigError, WeightsError
from sjdvp.interfaces import EncodedPrompt, ImageLayout
from sjdvp.models import glm_image, open_model
from sjdvp.models.base import ImageModel
from sjdvp.models.random_weights import GreyDecoder
from tests.models.harness import (
    CPU,
    PARITY,
    assert_greedy,
    assert_same_noise,
    golden,
    teacher_forced,
    worst,
)
from tests.models.tiny import glm_image_tokenizer

FOLDER = PARITY / "glm_image"
ABOUT = json.loads((FOLDER / "meta.json").read_text())
LAYOUT = ImageLayout(*ABOUT["grid"], ABOUT["n_codes"], preview=tuple(ABOUT["preview"]))
_preview_size = glm_image.preview_size


@pytest.fixture(scope="module", autouse=True)
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tokenizer; and a preview of 2 x 3 tokens, as in the fixture, not of about 256."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glm_image, "preview_size", lambda rows, columns: LAYOUT.preview)
        yield glm_image_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def config(tokenizer: Path, width: int = 160, height: int = 96) -> ModelConfig:
    return ModelConfig(
        "glm-image", str(FOLDER), tokenizer=str(tokenizer), width=width, height=height
    )


@cache
def opened(tokenizer: Path) -> ImageModel:
    return open_model(config(tokenizer), CPU, torch.float32)


def golden_prompts(model: ImageModel) -> list[EncodedPrompt]:
    inputs, _ = golden("glm_image")
    return [model.prompt.of_ids(inputs[f"prompt_{row}"].tolist()) for row in range(2)]


def test_logits(tokenizer: Path) -> None:
    """Guided logits mix both branches. The authors use no guidance here, so none are golden."""
    model = opened(tokenizer)
    inputs, expected = golden("glm_image")
    prompts = golden_prompts(model)
    plain, uncond, guided = (
        teacher_forced(model, prompts, inputs["codes"], scale) for scale in (1, 0, 3)
    )
    error = worst(plain, expected["logits"][..., : ABOUT["n_codes"]])
    print(f"glm_image, logits: largest error {error:.1e}")
    assert error < 1e-4
    assert worst(guided, uncond + 3 * (plain - uncond)) < 1e-3
    assert worst(plain, uncond) > 0.1


def test_greedy(tokenizer: Path) -> None:
    """The tokens of the preview, and those of the image, which alone are kept."""
    model = opened(tokenizer)
    tokens_BS = golden("glm_image")[1]["greedy_codes"]
    prompts = golden_prompts(model)
    assert torch.equal(teacher_forced(model, prompts, tokens_BS, 1).argmax(-1), tokens_BS)
    grey = replace(model, vq_decoder=GreyDecoder(model.token_embeds_VD))
    assert_greedy(grey, prompts, tokens_BS[:, LAYOUT.n_preview :], 1)


def test_layout_and_positions(tokenizer: Path) -> None:
    inputs, _ = golden("glm_image")
    assert opened(tokenizer).layout == LAYOUT
    for row in range(2):
        start = len(inputs[f"prompt_{row}"])
        assert torch.equal(glm_image.positions(LAYOUT, start), inputs[f"positions_{row}"])


def test_prompt(tokenizer: Path) -> None:
    model = opened(tokenizer)
    inputs, _ = golden("glm_image")
    for row, text in enumerate(ABOUT["texts"]):
        prompt, ids = model.prompt(f" {text}\n"), inputs[f"prompt_{row}"].tolist()
        assert torch.equal(prompt.cond.embeds_PD, model.prompt.of_ids(ids).cond.embeds_PD)
        assert (prompt.n_tokens, prompt.truncated) == (len(ids), False)
    long = model.prompt("a cat " * 500)
    assert (long.n_tokens, long.truncated) == (model.max_prompt, True)
    n_end = len(model.prompt.end)
    assert torch.equal(long.cond.embeds_PD[-n_end:], prompt.cond.embeds_PD[-n_end:])


@pytest.mark.process
def test_same_noise_is_plain_sampling(tokenizer: Path) -> None:
    model = opened(tokenizer)
    grey = replace(model, vq_decoder=GreyDecoder(model.token_embeds_VD))
    prompts = [model.prompt(text) for text in ("a cat", "two dogs on a hill", "z")]
    assert_same_noise(grey, prompts, SamplingConfig(temperature=0.9, top_p=0.75))


def test_sizes(tokenizer: Path) -> None:
    for case in json.loads((FOLDER / "sizes.json").read_text()):
        found = _preview_size(case["token_h"], case["token_w"])
        assert found == (case["preview_h"], case["preview_w"])
    with pytest.raises(ConfigError, match="no images of 100x96 pixels"):
        open_model(config(tokenizer, 100, 96), CPU, torch.float32)


def test_what_it_cannot_do_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    model = opened(tokenizer)
    with pytest.raises(ConfigError, match="no VQ decoder"):
        model.codebook()
    with pytest.raises(ConfigError, match="another program turns its tokens"):
        model.decode_pixels(torch.zeros(15, dtype=torch.int64))
    other = shutil.copytree(FOLDER, tmp_path / "model")
    values = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**values, "image_start_token_id": 63}))
    with pytest.raises(WeightsError, match="63 image tokens, the tokenizer has 64"):
        open_model(replace(config(tokenizer), path=str(other)), CPU, torch.float32)
    (other / "config.json").write_text(json.dumps({**values, "model_type": "glm4v"}))
    with pytest.raises(WeightsError, match="is a glm4v model, not GLM-Image"):
        open_model(replace(config(tokenizer), path=str(other)), CPU, torch.float32)
