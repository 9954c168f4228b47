"""Runs a model in the real engine, with prompts given as ids or features."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from sjdvp.config import DecoderConfig, RunConfig, SamplingConfig, from_table
from sjdvp.engine.engine import Engine
from sjdvp.engine.model_runner import ModelRunner
from sjdvp.interfaces import EncodedPrompt, ImageLayout
from sjdvp.jobs import ImageResult, Job, token_digest
from sjdvp.models.base import ImageModel
from sjdvp.presets import preset

torch.set_num_threads(1)

PARITY = Path(__file__).parents[1] / "data" / "parity"
CPU = torch.device("cpu")
GREEDY = SamplingConfig(temperature=0)


def golden(folder: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return inputs and expected tensors of a parity folder."""
    inputs = PARITY / folder / "inputs.safetensors"
    return load_file(inputs) if inputs.is_file() else {}, load_file(
        PARITY / folder / "expected.safetensors"
    )


def worst(found: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference."""
    assert found.shape == expected.shape
    return (found.double() - expected.double()).abs().max().item()


def same_pixels(found: Tensor, expected: Tensor) -> bool:
    """Return whether uint8 images differ by one at most, in less than 1 % of the values."""
    assert found.shape == expected.shape
    off = (found.int() - expected.int()).abs()
    return off.max() <= 1 and (off > 0).float().mean() < 0.01


def forced_S(layout: ImageLayout) -> Tensor:
    """Return which positions of an image are forced [S]."""
    return layout.forced_at(torch.arange(layout.length))


def on_positions(layout: ImageLayout, tokens_N: Tensor) -> Tensor:
    """Return tokens by image position [S], with 0 at forced ones."""
    tokens_S = torch.zeros(layout.length, dtype=torch.int64)
    tokens_S[~forced_S(layout)] = tokens_N.flatten()
    return tokens_S


@torch.inference_mode()
def teacher_forced(
    model: ImageModel,
    prompts: list[EncodedPrompt],
    tokens_BN: Iterable[Tensor],
    scale: float,
    window: int = 5,
) -> Tensor:
    """Return the logits with CFG of all image positions [B, S, V], given the tokens.

    As in decoding, each sequence is at its own position, advances by its own steps, and leaves
    rejected drafts in the cache.
    """
    tokens_BS = torch.stack([on_positions(model.layout, tokens_N) for tokens_N in tokens_BN])
    n_sequences, length = tokens_BS.shape
    runner = ModelRunner(model, n_sequences, window, scale)
    out_BSV = torch.full((n_sequences, length, model.layout.vocab_size), torch.nan)
    for row, prompt in enumerate(prompts):
        out_BSV[row, 0] = runner.prefill(row, prompt)[0]
    n_B = torch.ones(n_sequences, dtype=torch.int64)
    random = torch.Generator().manual_seed(0)
    while (n_B < length).any():
        steps_B = torch.randint(1, window + 1, (n_sequences,), generator=random).minimum(
            length - n_B
        )
        pos_BW = n_B[:, None] - 1 + torch.arange(window)
        drafts_BW = torch.randint(model.layout.vocab_size, pos_BW.shape, generator=random)
        true_BW = tokens_BS.gather(1, pos_BW.clamp(max=length - 1))
        accepted_BW = torch.arange(window) < steps_B[:, None]
        logits_BWV = runner(torch.where(accepted_BW, true_BW, drafts_BW), pos_BW)
        for row, (n, steps) in enumerate(zip(n_B.tolist(), steps_B.tolist(), strict=True)):
            out_BSV[row, n : n + steps] = logits_BWV[row, :steps]
        n_B += steps_B
    return out_BSV


class _ListQueue:
    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = iter(jobs)

    def take(self, *, wait: bool) -> Job | None:
        return next(self._jobs, None)

    def report(self, in_progress: float) -> None:
        pass


def sample(
    model: ImageModel,
    prompts: list[EncodedPrompt],
    decoder: str,
    sampling: SamplingConfig,
    *,
    n_sequences: int,
    window: int = 5,
) -> list[ImageResult]:
    """Generate one image for each prompt with a decoder preset, `n_sequences` at a time."""
    table = {str(index): prompt for index, prompt in enumerate(prompts)}
    chosen = from_table(DecoderConfig, {"preset": decoder, "window": window, **preset(decoder)})
    engine = Engine(
        replace(model, prompt=lambda text, negative: table[text]),
        RunConfig(sampling=sampling, decoder=chosen),
        n_sequences,
    )
    jobs = [Job(index, 0, seed=100 + index, prompt=str(index)) for index in range(len(prompts))]
    images = sorted(engine.generate(_ListQueue(jobs)), key=lambda image: image.job.index)
    assert all(image.error is None for image in images)
    return images


def digests(images: list[ImageResult]) -> list[str]:
    """Return the digest of each image's tokens."""
    return [image.stats["token_sha256"] for image in images]


def assert_greedy(
    model: ImageModel, prompts: list[EncodedPrompt], tokens_BN: Iterable[Tensor], scale: float
) -> list[ImageResult]:
    """Assert that greedy decoding and Jacobi iteration in a batch give these tokens."""
    expected = [token_digest(tokens_N.flatten().tolist()) for tokens_N in tokens_BN]
    sampling = replace(GREEDY, cfg_scale=scale)
    assert digests(sample(model, prompts, "ar", sampling, n_sequences=1, window=1)) == expected
    images = sample(model, prompts, "jacobi", sampling, n_sequences=len(prompts))
    assert digests(images) == expected
    return images


def assert_same_noise(
    model: ImageModel, prompts: list[EncodedPrompt], sampling: SamplingConfig
) -> None:
    """Assert that same-noise decoders give plain samples, in batches of 1 and 3."""
    plain = digests(sample(model, prompts, "ar", sampling, n_sequences=1, window=1))
    assert len(set(plain)) == len(prompts)
    for decoder, n_sequences in (("same-noise", 1), ("same-noise", 3), ("same-noise-vp", 3)):
        assert (
            digests(sample(model, prompts, decoder, sampling, n_sequences=n_sequences)) == plain
        ), (decoder, n_sequences)
