"""Runs a backbone through the real engine and its windowed, per-row cache, with prompts given as ids or features."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from sjdvp.backbones.adapter import Adapter
from sjdvp.backbones.grid import Grid
from sjdvp.config import DecoderConfig, RunConfig, SamplingConfig, from_table
from sjdvp.engine.engine import Engine
from sjdvp.engine.forward import Forward
from sjdvp.engine.metrics import token_digest
from sjdvp.interfaces import Prompt
from sjdvp.jobs import Job, Picture
from sjdvp.presets import preset

torch.set_num_threads(1)

PARITY = Path(__file__).parents[1] / "data" / "parity"
CPU = torch.device("cpu")
GREEDY = SamplingConfig(temperature=0)


def golden(folder: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return inputs and expected tensors of a parity folder."""
    inputs = PARITY / folder / "inputs.safetensors"
    return load_file(inputs) if inputs.is_file() else {}, load_file(PARITY / folder / "expected.safetensors")


def worst(found: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference."""
    assert found.shape == expected.shape
    return (found.double() - expected.double()).abs().max().item()


def same_pixels(found: Tensor, expected: Tensor) -> bool:
    """Tell whether uint8 pictures agree as the fixtures ask: off by one at most, in less than 1 % of the values."""
    assert found.shape == expected.shape
    off = (found.int() - expected.int()).abs()
    return off.max() <= 1 and (off > 0).float().mean() < 0.01


def on_positions(grid: Grid, codes_N: Tensor) -> Tensor:
    """Return codes by image position [S], with the stand-in 0 at forced ones."""
    codes_S = torch.zeros(grid.length, dtype=torch.int64)
    codes_S[~grid.forced_S()] = codes_N.flatten()
    return codes_S


@torch.inference_mode()
def teacher_forced(backbone: Adapter, prompts: list[Prompt], codes_BN: Iterable[Tensor], scale: float, window: int = 5) -> Tensor:
    """Return the guided logits of all image positions [B, S, V], given the codes.

    As in decoding, each row is at its own place, moves by its own steps, and leaves rejected drafts behind in the cache.
    """
    codes_BS = torch.stack([on_positions(backbone.grid, codes_N) for codes_N in codes_BN])
    n_rows, length = codes_BS.shape
    forward = Forward(backbone, n_rows, window, scale)
    out_BSV = torch.full((n_rows, length, backbone.n_codes), torch.nan)
    for row, prompt in enumerate(prompts):
        out_BSV[row, 0] = forward.prefill(row, prompt)[0]
    n_B = torch.ones(n_rows, dtype=torch.int64)
    random = torch.Generator().manual_seed(0)
    while (n_B < length).any():
        steps_B = torch.randint(1, window + 1, (n_rows,), generator=random).minimum(length - n_B)
        pos_BW = n_B[:, None] - 1 + torch.arange(window)
        drafts_BW = torch.randint(backbone.n_codes, pos_BW.shape, generator=random)
        true_BW = codes_BS.gather(1, pos_BW.clamp(max=length - 1))
        stands_BW = torch.arange(window) < steps_B[:, None]
        logits_BWV = forward(torch.where(stands_BW, true_BW, drafts_BW), pos_BW)
        for row, (n, steps) in enumerate(zip(n_B.tolist(), steps_B.tolist(), strict=True)):
            out_BSV[row, n : n + steps] = logits_BWV[row, :steps]
        n_B += steps_B
    return out_BSV


class _Jobs:
    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = iter(jobs)

    def take(self, *, wait: bool) -> Job | None:
        return next(self._jobs, None)


def draw(
    backbone: Adapter, prompts: list[Prompt], decoder: str, sampling: SamplingConfig, *, n_rows: int, window: int = 5
) -> list[Picture]:
    """Draw one picture for each prompt with a decoder preset, `n_rows` at a time, and return them in the prompts' order."""
    table = {str(index): prompt for index, prompt in enumerate(prompts)}
    chosen = from_table(DecoderConfig, {"preset": decoder, "window": window, **preset(decoder)})
    engine = Engine(replace(backbone, prompt=table.__getitem__), RunConfig(sampling=sampling, decoder=chosen), n_rows)
    jobs = [Job(index, 0, seed=100 + index, prompt=str(index)) for index in range(len(prompts))]
    pictures = sorted(engine.paint(_Jobs(jobs)), key=lambda picture: picture.job.index)
    assert all(picture.error is None for picture in pictures)
    return pictures


def digests(pictures: list[Picture]) -> list[str]:
    """Return the digest of each picture's codes."""
    return [picture.stats["token_sha256"] for picture in pictures]


def assert_greedy(backbone: Adapter, prompts: list[Prompt], codes_BN: Iterable[Tensor], scale: float) -> list[Picture]:
    """Assert that greedy decoding gives exactly these codes, token by token and by Jacobi iteration, alone and in a batch."""
    expected = [token_digest(codes_N.flatten().tolist()) for codes_N in codes_BN]
    sampling = replace(GREEDY, cfg_scale=scale)
    assert digests(draw(backbone, prompts, "ar", sampling, n_rows=1, window=1)) == expected
    pictures = draw(backbone, prompts, "jacobi", sampling, n_rows=len(prompts))
    assert digests(pictures) == expected
    return pictures


def assert_same_noise(backbone: Adapter, prompts: list[Prompt], sampling: SamplingConfig) -> None:
    """Assert that every same-noise decoder gives the plain sample of the same seeds, for one row and for three."""
    plain = digests(draw(backbone, prompts, "ar", sampling, n_rows=1, window=1))
    assert len(set(plain)) == len(prompts)
    for decoder, n_rows in (("same-noise", 1), ("same-noise", 3), ("same-noise-vp", 3)):
        assert digests(draw(backbone, prompts, decoder, sampling, n_rows=n_rows)) == plain, (decoder, n_rows)
