"""What is measured of one image: the engine's part of its log row."""

import hashlib
import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from sjdvp.decode.state import Tally
from sjdvp.jobs import Job


@dataclass(slots=True)
class ImageSequence:
    """An image in flight: its job and its clock (seconds of time.perf_counter)."""

    job: Job
    warmup: bool
    started: float = field(default_factory=time.perf_counter)
    prompt_tokens: int = 0
    truncated: bool = False
    prefilled: float = 0.0
    decoded: float = 0.0


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read next tells the truth."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    """Return the most bytes this process has held so far: on its GPUs (several under a device map), or resident on a CPU."""
    if device.type == "cuda":
        return sum(
            torch.cuda.max_memory_allocated(index) for index in range(torch.cuda.device_count())
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def decoding_stats(
    n_positions: int, nfe: int, tally: list[float], commits: list[int], predicts: bool
) -> dict[str, Any]:
    """Return how the tokens of one image came about.

    `accept_hist[k]` counts the forward passes that committed k tokens. `prediction` is null without verification prediction; its rates are over
    tokens that had been looked at before.
    """
    drafted, accepted = int(tally[Tally.DRAFTED]), int(tally[Tally.ACCEPTED])
    looked = tally[Tally.LOOKED]
    prediction = {
        "growth_rate": _ratio(tally[Tally.GREW], looked),
        "rise_again_rate": _ratio(tally[Tally.ROSE_AGAIN], tally[Tally.ROSE]),
        "tv_plain": _ratio(tally[Tally.TV_PLAIN], looked),
        "tv_predicted": _ratio(tally[Tally.TV_PREDICTED], looked),
    }
    return {
        "nfe": nfe,
        "image_tokens": n_positions,
        "tokens_per_nfe": _ratio(n_positions, nfe),
        "drafted": drafted,
        "accepted": accepted,
        "accept_rate": _ratio(accepted, drafted),
        "accept_hist": commits,
        "prediction": prediction if predicts else None,
    }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


def token_digest(tokens: list[int]) -> str:
    """Return the SHA-256 of the image tokens as comma-separated decimals."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()
