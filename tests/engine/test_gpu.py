"""On a real GPU: every form of the step draws the same, none waits for the host, memory that runs out halves the batch."""

from dataclasses import replace

import pytest
import torch

from sjdvp.backbones.generic import load
from sjdvp.backbones.place import Place
from sjdvp.config import RunSettings
from sjdvp.engine.devices import use_device
from sjdvp.engine.engine import Engine
from sjdvp.engine.memory import Elastic
from sjdvp.engine.runtime import eager
from tests.engine.test_engine import paint, settings
from tests.engine.test_runtime import DECODERS, started
from tests.engine.tiny import save_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def on(index, folder, dtype=torch.float64):
    device = torch.device("cuda", index)
    use_device(device)
    return load(folder, Place(device), dtype)


def digests(backbone, decoder, step, n_rows=2):
    drawn = paint(backbone, replace(settings(decoder), run=RunSettings(step=step)), n_rows)
    return [(picture.stats["token_sha256"], picture.stats["nfe"]) for picture in drawn]


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_form_of_the_step_draws_the_same(folder, decoder):
    """On each GPU there is, the last one first: a graph that is captured on another one would be empty."""
    for index in reversed(range(torch.cuda.device_count())):
        backbone = on(index, folder)
        assert digests(backbone, decoder, "eager") == digests(backbone, decoder, "graph")


@pytest.mark.parametrize("decoder", ["sjd", "coupled-vp"])
def test_the_compiled_step_draws_the_same(folder, decoder):
    backbone = on(0, folder)
    assert digests(backbone, decoder, "eager") == digests(backbone, decoder, "compile")


@pytest.mark.parametrize("decoder", ["same-noise", "same-noise-vp"])
def test_same_noise_is_ar(folder, decoder):
    backbone = on(0, folder)
    tokens = [[digest for digest, _ in digests(backbone, name, "graph", n_rows)] for name, n_rows in (("ar", 1), (decoder, 3))]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_step_does_not_wait(folder, decoder):
    engine = started(on(0, folder), decoder)
    step = eager(engine.look, engine.decode)
    with torch.inference_mode():
        step(engine.state, engine.forward.lengths[-1])  # libraries find their workspaces
        torch.cuda.set_sync_debug_mode("error")
        try:
            step(engine.state, engine.forward.lengths[-1])
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_memory_that_runs_out_halves_the_batch(folder):
    backbone = on(0, folder)
    tried = []

    def make(n_rows):
        tried.append(n_rows)
        if n_rows > 2:
            torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
        return Engine(backbone, settings("coupled"), n_rows)

    class Jobs:
        def take(self, *, wait):
            return None

    assert list(Elastic(make, 8).paint(Jobs())) == []
    assert tried == [8, 4, 2]
