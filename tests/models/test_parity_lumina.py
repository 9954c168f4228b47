"""Lumina-mGPT against the official code: parity folders lumina*, chameleon_vqgan."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sjdvp.config import ModelConfig, SamplingConfig
from sjdvp.errors import PromptError
from sjdvp.interfaces import ImageLayout
from sjdvp.models import open_model
from sjdvp.models.base import ImageModel
from sjdvp.models.checkpoints import open_checkpoint
from sjdvp.models.vq import MovqDecoder, TamingDecoder, to_uint8
from sjdvp.models.vq.taming import TAMING
from sjdvp.sampling import to_probs
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
from tests.models.tiny import chameleon_tokenizer, lumina2_model

CASES = [("lumina1_lm", "2x3"), ("lumina1_lm", "1x1"), ("lumina1_lm_swin_gqa", "1x2")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chameleon_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@cache
def lumina(folder: str, size: str, tokenizer: Path) -> ImageModel:
    """Open a model for a size given as in the fixtures: height x width, in units of 32 pixels."""
    height, width = (32 * int(side) for side in size.split("x"))
    pixels = str(PARITY / "chameleon_vqgan" / "vqgan.ckpt")
    path = str(PARITY / folder)
    model = ModelConfig(
        "lumina-mgpt", path, tokenizer=str(tokenizer), vq_decoder=pixels, width=width, height=height
    )
    return open_model(model, CPU, torch.float32)


def of_image_tokens(
    model: ImageModel, logits_JC: Tensor, columns_C: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the columns of logits over vocabulary ids that are image tokens, and the tokens."""
    is_image = (columns_C >= 4) & (columns_C < 8196)
    return logits_JC[:, is_image], columns_C[is_image] - 4


@pytest.mark.parametrize(("folder", "size"), CASES)
def test_logits(folder: str, size: str, tokenizer: Path) -> None:
    model = lumina(folder, size, tokenizer)
    inputs, expected = golden(folder)
    ids, tokens = inputs[f"ids_{size}"], inputs[f"codes_{size}"]
    first = ids.tolist().index(8197) + 3  # sequence index of image position 0
    length, free_S = model.layout.length, ~forced_S(model.layout)
    prompt = model.prompt.of_ids(ids[:first].tolist())
    scales = {1: "cond_logits", 0: "uncond_logits", 3: "cfg_logits"} | (
        {4: "cfg_logits"} if folder == "lumina1_lm" else {}
    )
    for scale, kind in scales.items():
        name = f"{kind}_columns_{size}" + (f"_s{scale}" if kind == "cfg_logits" else "")
        start = (
            first - 1 if kind == "cond_logits" else 2
        )  # the row of the token before image position 0
        start += kind == "cfg_logits"  # these rows are named by the token they predict
        columns_SC, found_tokens = of_image_tokens(
            model, expected[name][start : start + length], inputs[f"columns_{size}"]
        )
        found_SV = teacher_forced(model, [prompt], [tokens], scale)[0]
        assert worst(found_SV[:, found_tokens][free_S], columns_SC[free_S]) < (
            1e-3 if kind == "cfg_logits" else 1e-4
        )
    last_V = expected[f"cond_logits_full_{size}_last_prefix"][4:8196]
    assert worst(teacher_forced(model, [prompt], [tokens], 1)[0, 0], last_V) < 1e-4


@pytest.mark.parametrize(("folder", "size"), CASES)
def test_allowed_sets(folder: str, size: str, tokenizer: Path) -> None:
    """The grammar of every token after the size, and the ids that CFG, grammar and top-k leave."""
    model = lumina(folder, size, tokenizer)
    inputs, _ = golden(folder)
    ids = inputs[f"ids_{size}"].tolist()
    prompt = model.prompt.of_ids(ids[: ids.index(8197) + 3])
    cases = json.loads((PARITY / folder / "grammar_steps.json").read_text())
    for name, case in cases.items():
        if not name.startswith(size):
            continue
        steps = [step for step in case["steps"] if step["grammar"] != "unconstrained"]
        assert [step["grammar"] for step in steps] == full_sequence(model.layout)
        sampling = SamplingConfig(cfg_scale=float(name.split("_s")[1]), top_k=case["image_top_k"])
        logits_1SV = teacher_forced(model, [prompt], [inputs[f"codes_{size}"]], sampling.cfg_scale)
        probs_SV = to_probs(logits_1SV, forced_S(model.layout)[None], sampling)[0]
        for step, probs_V in zip(steps, probs_SV, strict=False):
            left = probs_V.nonzero().flatten().tolist()
            assert left == (
                [0]
                if step["grammar"] == "newline"
                else [token - 4 for token in step["kept_after_top_k"]]
            )


def full_sequence(layout: ImageLayout) -> list[str]:
    """Return the official sequence of an image: decoded tokens, then known ones."""
    return ["newline" if forced else "image" for forced in forced_S(layout).tolist()] + [
        "newline",
        "end_of_image",
    ]


@pytest.mark.parametrize(("folder", "size"), CASES)
def test_greedy(folder: str, size: str, tokenizer: Path) -> None:
    model = lumina(folder, size, tokenizer)
    inputs, expected = golden(folder)
    prompt = model.prompt.of_ids(inputs[f"generation_prompt_{size}"].tolist())
    for scale in (3, 4) if folder == "lumina1_lm" else (3,):
        images = assert_greedy(model, [prompt], [expected[f"greedy_codes_{size}_s{scale}"]], scale)
    if folder == "lumina1_lm":
        image = torch.from_numpy(images[0].image_HWC)
        assert same_pixels(
            image, golden("chameleon_vqgan")[1][f"e2e_image_of_lumina1_greedy_{size}_s4_uint8_hwc"]
        )


@pytest.mark.process
@pytest.mark.parametrize("folder", ["lumina1_lm", "lumina1_lm_swin_gqa"])
def test_same_noise_is_plain_sampling(folder: str, tokenizer: Path) -> None:
    model = lumina(folder, "1x2", tokenizer)
    prompts = [model.prompt(text) for text in ("a cat", "two dogs on a hill", "z")]
    assert len({prompt.n_tokens for prompt in prompts}) == 3
    assert_same_noise(model, prompts, SamplingConfig(cfg_scale=3, top_k=2000))


@pytest.mark.process
def test_version_two(tmp_path: Path) -> None:
    """The fixtures have no transformer of version 2: version 1's is used, with other ids."""
    model = ModelConfig(
        "lumina-mgpt-2", str(lumina2_model(tmp_path / "model")), width=32, height=32
    )
    model = open_model(model, CPU, torch.float32)
    assert model.layout == ImageLayout(4, 4, 16384, row_end=True)
    prompts = [model.prompt(text) for text in ("a cat", "two dogs on a hill", "z")]
    begin = model.prompt.of_ids([151665, 151672, 151672]).cond
    assert torch.equal(prompts[0].uncond.embeds_PD, begin.embeds_PD)
    assert torch.equal(
        prompts[0].cond.embeds_PD[0], model.prompt.of_ids([151643]).cond.embeds_PD[0]
    )
    assert_same_noise(model, prompts, SamplingConfig(cfg_scale=4, top_k=4096))


def test_prompt(tokenizer: Path) -> None:
    model = lumina("lumina1_lm", "2x3", tokenizer)
    prompt = model.prompt("cat")
    text = "Generate an image of 96x64 according to the following prompt:\ncat"
    assert prompt.n_tokens == 1 + len(text) + 4
    begin = model.prompt.of_ids([8197, 8804 + 2, 8804 + 3])
    assert torch.equal(prompt.uncond.embeds_PD, begin.cond.embeds_PD)
    assert torch.equal(prompt.cond.embeds_PD[-3:], begin.cond.embeds_PD)
    long = model.prompt("cat " * 500)
    assert long.truncated
    assert long.n_tokens == model.max_prompt
    assert torch.equal(long.cond.embeds_PD[-3:], begin.cond.embeds_PD)
    with pytest.raises(PromptError, match="takes no negative prompt"):
        model.prompt("cat", "dog")


def test_another_size_is_the_model_opened_at_that_size(tokenizer: Path) -> None:
    one, other = lumina("lumina1_lm", "2x3", tokenizer), lumina("lumina1_lm", "3x2", tokenizer)
    assert one.at_size is not None
    resized = one.at_size(64, 96)
    assert resized.layout == other.layout
    wanted, found = other.prompt("cat"), resized.prompt("cat")
    assert torch.equal(found.cond.embeds_PD, wanted.cond.embeds_PD)
    assert torch.equal(found.uncond.embeds_PD, wanted.uncond.embeds_PD)
    assert resized.transformer is one.transformer


@pytest.mark.parametrize("size", ["4x4", "2x5", "6x2"])
def test_chameleon_pixels(size: str) -> None:
    decoder = TamingDecoder.load(
        open_checkpoint(PARITY / "chameleon_vqgan" / "vqgan.ckpt"), TAMING, CPU
    )
    inputs, expected = golden("chameleon_vqgan")
    image = decoder(inputs[f"codes_{size}"].view(1, *map(int, size.split("x"))))
    assert worst(image, expected[f"image_{size}"]) < 2e-4
    assert same_pixels(to_uint8(image, truncate=True)[0], expected[f"image_{size}_uint8_hwc"])


@pytest.mark.parametrize("size", ["4x4", "4x8"])
def test_lumina2_pixels(size: str) -> None:
    decoder = MovqDecoder.load(open_checkpoint(PARITY / "lumina2_movq" / "movqgan_270M.ckpt"), CPU)
    inputs, expected = golden("lumina2_movq")
    image = decoder(inputs[f"codes_{size}"].view(1, *map(int, size.split("x"))))
    assert worst(image, expected[f"image_{size}"]) < 2e-4
    assert same_pixels(to_uint8(image, truncate=False), expected[f"image_{size}_uint8_hwc"])


def test_lumina2_allowed_sets() -> None:
    for case in json.loads((PARITY / "lumina2_movq" / "grammar.json").read_text())["cases"]:
        layout = ImageLayout(
            4 * case["h_size_token"], 4 * case["w_size_token"], 16384, row_end=True
        )
        assert full_sequence(layout) == case["allowed_per_step_after_width_token"]
