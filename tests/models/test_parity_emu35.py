"""Emu3.5-Image against the official code: parity folders emu35 and emu35_ibq."""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch

from sjdvp.config import ModelConfig, SamplingConfig
from sjdvp.errors import ConfigError, WeightsError
from sjdvp.interfaces import EncodedPrompt, ImageLayout
from sjdvp.models import open_model
from sjdvp.models.base import ImageModel
from sjdvp.models.emu3 import open_emu3_tokenizer
from sjdvp.models.tokenizer import encode
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

FOLDER = PARITY / "emu35"
ABOUT = json.loads((FOLDER / "meta.json").read_text())


def config(
    width: int | None = 48, height: int | None = 32, resolution: int | None = None
) -> ModelConfig:
    pixels = str(PARITY / "emu35_ibq")
    return ModelConfig(
        "emu3.5", str(FOLDER), vq_decoder=pixels, resolution=resolution, width=width, height=height
    )


@cache
def emu35() -> ImageModel:
    return open_model(config(), CPU, torch.float32)


def golden_prompts(model: ImageModel) -> list[EncodedPrompt]:
    inputs, _ = golden("emu35")
    return [model.prompt.of_ids(inputs[f"cond_prompt_{row}"].tolist()) for row in range(2)]


def test_logits() -> None:
    """Scores with CFG are a mix of log-probabilities: equal up to a constant for each position."""
    model = emu35()
    inputs, expected = golden("emu35")
    prompts, free_S = golden_prompts(model), ~forced_S(model.layout)
    for scale, name in ((1, "cond_logits"), (0, "uncond_logits"), (5, "cfg_scores_s5")):
        found = teacher_forced(model, prompts, inputs["codes"], scale)[:, free_S]
        wanted = expected[name]
        if scale == 5:
            found, wanted = found.log_softmax(-1), wanted.log_softmax(-1)
        error = worst(found, wanted)
        print(f"emu35, {name}: largest error {error:.1e}")
        assert error < (1e-3 if scale == 5 else 1e-4)


def test_greedy() -> None:
    model = emu35()
    expected = golden("emu35")[1]
    images = assert_greedy(model, golden_prompts(model), expected["greedy_codes_s5"], 5)
    found = torch.stack([torch.from_numpy(image.image_HWC) for image in images])
    assert same_pixels(found, expected["image_of_greedy_uint8_hwc"])


@pytest.mark.parametrize("size", ["4x4", "3x5"])
def test_pixels(size: str) -> None:
    inputs, expected = golden("emu35_ibq")
    image = emu35().vq_decoder(inputs[f"codes_{size}"])
    assert worst(image, expected[f"image_{size}"]) < 2e-4


def test_tokenizer() -> None:
    """The ids of the official tokenizer, which is tiktoken's."""
    tokenizer = open_emu3_tokenizer(FOLDER / "emu3.tiktoken")
    for case in json.loads((FOLDER / "tokenizer_cases.json").read_text()):
        assert encode(tokenizer, case["text"]) == case["ids"], case["text"]
    assert tokenizer.token_to_id("<|visual token 000000|>") == ABOUT["bov"]


def test_prompt() -> None:
    model = emu35()
    inputs, _ = golden("emu35")
    uncond = model.prompt.of_ids(inputs["uncond_prompt"].tolist()).cond
    for row, text in enumerate(ABOUT["texts"]):
        prompt = model.prompt(f" {text}\n")
        ids = inputs[f"cond_prompt_{row}"].tolist()
        assert torch.equal(prompt.cond.embeds_PD, model.prompt.of_ids(ids).cond.embeds_PD)
        assert torch.equal(prompt.uncond.embeds_PD, uncond.embeds_PD)
    long = model.prompt("a cat " * 500)
    assert (long.n_tokens, long.truncated) == (model.max_prompt, True)
    n_after = len(encode(model.prompt.tokenizer, " ASSISTANT: <|extra_100|>")) + len("[2*3]")
    assert torch.equal(long.cond.embeds_PD[-n_after:], prompt.cond.embeds_PD[-n_after:])


def test_a_negative_prompt_is_the_text_of_the_unconditional_branch() -> None:
    model = emu35()
    empty, own = model.prompt("a cat", ""), model.prompt("a cat")
    assert torch.equal(empty.uncond.embeds_PD, own.uncond.embeds_PD)
    said = model.prompt("a cat", "a dog").uncond
    before = "<|extra_203|>You are a helpful assistant. USER: a dog ASSISTANT: <|extra_100|>"
    ids = encode(model.prompt.tokenizer, before)
    wanted = model.prompt.of_ids([*ids, *model.prompt.end]).cond
    assert torch.equal(said.embeds_PD, wanted.embeds_PD)


def test_same_noise_is_plain_sampling() -> None:
    model = emu35()
    prompts = [model.prompt(text) for text in ("a cat", "two dogs on a hill", "z")]
    assert_same_noise(model, prompts, SamplingConfig(cfg_scale=5, top_k=40))


def test_allowed_sets() -> None:
    """The official processor forces the same tokens; the end of the image is not decoded."""
    for case in json.loads((FOLDER / "grammar.json").read_text()):
        layout = ImageLayout(case["height"], case["width"], 131072, row_end=True)
        size = [*f"{case['height']}*{case['width']}", "img"]
        decoded = ["eol" if is_forced else "visual" for is_forced in forced_S(layout).tolist()]
        assert [*size, *decoded, "eoi"] == case["steps_after_boi"]


def test_sizes() -> None:
    """The table of the official configuration; the default is its own."""
    with pytest.raises(ConfigError, match="no images of 1024x768 pixels") as caught:
        open_model(config(1024, 768, 1024), CPU, torch.float32)
    assert str(caught.value).endswith("1168x880, 1248x832, 1360x752")
    with pytest.raises(ConfigError, match="no image sizes are known for 512"):
        open_model(config(512, 512, 512), CPU, torch.float32)
    layout = open_model(config(None, None, 1024), torch.device("meta"), torch.float32).layout
    assert (layout.rows, layout.columns, layout.length) == (55, 73, 55 * 74 - 1)


def test_tokenizers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "model")
    listed = folder / "emu3_vision_tokens.txt"
    listed.write_text("\n".join(listed.read_text().splitlines()[:-1]))
    wrong = ModelConfig(
        "emu3.5", str(folder), vq_decoder=str(PARITY / "emu35_ibq"), width=48, height=32
    )
    with pytest.raises(WeightsError, match="571 tokens, of which the tokenizer knows 570"):
        open_model(wrong, CPU, torch.float32)
    listed.unlink()
    with pytest.raises(WeightsError, match=r"no emu3_vision_tokens\.txt beside"):
        open_emu3_tokenizer(folder / "emu3.tiktoken")
    listed.write_text("")
    (folder / "emu3.tiktoken").write_text("IQ== 1\n")
    with pytest.raises(WeightsError, match="token ranks are not 0, 1, 2"):
        open_emu3_tokenizer(folder / "emu3.tiktoken")
    (folder / "emu3.tiktoken").write_text("<html>\n")
    with pytest.raises(WeightsError, match="not a tiktoken file"):
        open_emu3_tokenizer(folder / "emu3.tiktoken")
