"""LlamaGen against the official code: parity folders llamagen_*."""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch

from sjdvp.config import ModelConfig, SamplingConfig
from sjdvp.interfaces import EncodedPrompt, PromptBranch
from sjdvp.models import llamagen, open_model
from sjdvp.models.base import ImageModel
from sjdvp.models.checkpoints import open_checkpoint
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.vq import TamingDecoder, to_uint8
from sjdvp.models.vq.taming import LLAMAGEN
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

PIXELS = PARITY / "llamagen_vq" / "vq_ds16_tiny.pt"


@cache
def classes(folder: str) -> ImageModel:
    about = json.loads((PARITY / folder / "meta.json").read_text())
    model = ModelConfig(
        backbone="llamagen-c2i",
        path=str(PARITY / folder / about["checkpoint"]),
        vq_decoder=str(PIXELS),
        resolution=16 * about["grid"],
        heads=about["n_head"],
    )
    return open_model(model, CPU, torch.float32)


@cache
def captions() -> tuple[ImageModel, llamagen.CaptionPrompter]:
    """Open the text-conditional model without its text encoder: the fixtures give features."""
    model = ModelConfig(
        path=str(PARITY / "llamagen_t2i" / "t2i_tiny_64.pt"), vq_decoder=str(PIXELS), heads=4
    )
    network, adapt = llamagen._open(model, "t2i", DeviceMap(CPU), torch.float32)
    prompter = llamagen.CaptionPrompter(
        lambda text: pytest.fail("no text is read"), network.condition
    )
    return adapt(llamagen.CAPTION_SLOTS, prompter), prompter


def caption_prompts() -> list[EncodedPrompt]:
    inputs, _ = golden("llamagen_t2i")
    prompter = captions()[1]
    rows = zip(
        inputs["t5_features_right_padded"], inputs["t5_mask_right_padded"].bool(), strict=True
    )
    return [prompter.of_features(features_PF[mask_P]) for features_PF, mask_P in rows]


@pytest.mark.parametrize("folder", ["llamagen_c2i", "llamagen_c2i_hd20"])
def test_class_logits(folder: str) -> None:
    model = classes(folder)
    inputs, expected = golden(folder)
    prompts = [model.prompt(str(number)) for number in inputs["class_ids"].tolist()]
    assert (
        worst(teacher_forced(model, prompts, inputs["tokens"], 1), expected["cond_logits"]) < 1e-4
    )
    assert (
        worst(teacher_forced(model, prompts, inputs["tokens"], 0), expected["uncond_logits"]) < 1e-4
    )
    for scale in (2, 4):
        assert (
            worst(
                teacher_forced(model, prompts, inputs["tokens"], scale),
                expected[f"cfg_logits_s{scale}"],
            )
            < 1e-3
        )


@pytest.mark.process
@pytest.mark.parametrize("folder", ["llamagen_c2i", "llamagen_c2i_hd20"])
def test_class_greedy(folder: str) -> None:
    model = classes(folder)
    inputs, expected = golden(folder)
    prompts = [model.prompt(str(number)) for number in inputs["class_ids"].tolist()]
    for scale, name in ((1, "nocfg"), (2, "s2"), (4, "s4")):
        images = assert_greedy(model, prompts, expected[f"greedy_tokens_{name}"], scale)
    if folder == "llamagen_c2i":
        image = torch.stack([torch.from_numpy(image.image_HWC) for image in images[:2]])
        assert same_pixels(
            image, golden("llamagen_vq")[1]["e2e_image_of_llamagen_c2i_greedy_s4_rows01_uint8_hwc"]
        )


def test_caption_logits() -> None:
    model, _ = captions()
    inputs, expected = golden("llamagen_t2i")
    prompts = caption_prompts()
    assert (
        worst(teacher_forced(model, prompts, inputs["tokens"], 1), expected["cond_logits"]) < 1e-4
    )
    assert (
        worst(teacher_forced(model, prompts, inputs["tokens"], 0), expected["uncond_logits"]) < 1e-4
    )
    for scale in (4, 7.5):
        assert (
            worst(
                teacher_forced(model, prompts, inputs["tokens"], scale),
                expected[f"cfg_logits_s{scale}"],
            )
            < 1e-3
        )


def test_caption_hidden_on_the_right_side() -> None:
    """The official switch --no-left-padding: hidden slots may lie anywhere."""
    model, prompter = captions()
    inputs, expected = golden("llamagen_t2i")
    prompts = []
    for features_PF, mask_P in zip(
        inputs["t5_features_right_padded"], inputs["t5_mask_right_padded"].bool(), strict=True
    ):
        rows = [
            PromptBranch(prompter.mlp(x).detach(), mask_P)
            for x in (features_PF * mask_P[:, None], prompter.mlp.uncond_embedding)
        ]
        prompts.append(EncodedPrompt(*rows, n_tokens=len(mask_P), truncated=False))
    assert (
        worst(
            teacher_forced(model, prompts, inputs["tokens"], 1),
            expected["cond_logits_no_left_padding"],
        )
        < 1e-4
    )
    assert (
        worst(
            teacher_forced(model, prompts, inputs["tokens"], 0),
            expected["uncond_logits_no_left_padding"],
        )
        < 1e-4
    )


@pytest.mark.process
def test_caption_greedy() -> None:
    model, _ = captions()
    expected = golden("llamagen_t2i")[1]
    assert_greedy(model, caption_prompts(), expected["greedy_tokens_s4"], 4)
    images = assert_greedy(model, caption_prompts(), expected["greedy_tokens_s7.5"], 7.5)
    image = torch.from_numpy(images[0].image_HWC)[None]
    assert same_pixels(
        image, golden("llamagen_vq")[1]["e2e_image_of_llamagen_t2i_greedy_s7.5_row0_uint8_hwc"]
    )


@pytest.mark.process
def test_same_noise_is_plain_sampling() -> None:
    sampling = SamplingConfig(cfg_scale=4, top_k=60)
    model = classes("llamagen_c2i")
    assert_same_noise(model, [model.prompt(str(number)) for number in (1, 4, 9)], sampling)
    assert_same_noise(captions()[0], caption_prompts(), replace(sampling, top_p=0.95))


@pytest.mark.parametrize("size", ["4x4", "3x5"])
def test_pixels(size: str) -> None:
    decoder = TamingDecoder.load(open_checkpoint(PIXELS), LLAMAGEN, CPU)
    inputs, expected = golden("llamagen_vq")
    rows, columns = map(int, size.split("x"))
    image = decoder(inputs[f"codes_{size}"].view(-1, rows, columns))
    assert worst(image, expected[f"image_{size}"]) < 2e-4
    assert same_pixels(to_uint8(image, truncate=False), expected[f"image_{size}_uint8_hwc"])
