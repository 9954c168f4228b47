"""What the tests of the engine share: a tiny model, settings, a job queue, and an engine that has
started.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sjdvp.bench import admit_all
from sjdvp.config import RunConfig, SamplingConfig, from_table
from sjdvp.engine.engine import Engine
from sjdvp.jobs import ImageResult, Job
from sjdvp.models.base import ImageModel
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.generic import load
from sjdvp.presets import PRESETS
from tests.engine.tiny import save_tiny_model

CPU = torch.device("cpu")
DECODERS = ["ar", "sjd", "sjdvp", "coupled", "coupled-vp", "same-noise-vp"]
PROMPTS = [
    "red dog",
    "a blue cat on red",
    "",
    "dog",
    "on a a a a a a a a",
    "cat",
    "unknown words here",
]


class Queue:
    """Gives jobs one after another; a None among them is a moment without a job."""

    def __init__(self, jobs: list[Job | None]) -> None:
        self.jobs = list(jobs)

    def take(self, *, wait: bool) -> Job | None:
        while wait and self.jobs and self.jobs[0] is None:
            self.jobs.pop(0)
        return self.jobs.pop(0) if self.jobs else None

    def report(self, in_progress: float) -> None:
        self.in_progress = in_progress


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def model(folder) -> ImageModel:
    return load(folder, DeviceMap(CPU), torch.float32)


@pytest.fixture(scope="session")
def model64(folder) -> ImageModel:
    return load(folder, DeviceMap(CPU), torch.float64)


def settings(decoder: str = "sjd", window: int = 6, cfg_scale: float = 2.0, **more) -> RunConfig:
    table = {"preset": decoder, "window": window, **PRESETS[decoder], **more}
    run = RunConfig(sampling=SamplingConfig(cfg_scale=cfg_scale))
    return replace(run, decoder=from_table(type(run.decoder), table, "decoder"))


def jobs_for_prompts() -> list[Job]:
    return [Job(i, 0, 100 + i, prompt) for i, prompt in enumerate(PROMPTS)]


def generate(
    model: ImageModel, config: RunConfig, batch_size: int, jobs: list[Job | None] | None = None
) -> list[ImageResult]:
    queue = Queue(jobs_for_prompts() if jobs is None else jobs)
    images = Engine(model, config, batch_size).generate(queue)
    return sorted(images, key=lambda image: image.job.index)


def tokens_and_nfe(images: list[ImageResult]) -> list[tuple[str, int]]:
    return [(image.stats["token_sha256"], image.stats["nfe"]) for image in images]


@torch.inference_mode()
def started(model: ImageModel, decoder: str, batch_size: int = 2) -> Engine:
    """Return an engine with an image in every slot."""
    engine = Engine(model, settings(decoder), batch_size)
    admit_all(engine)
    return engine
