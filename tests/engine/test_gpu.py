"""On a real GPU: same tokens from every form of the step, no host wait, batch halved without
memory.
"""

from dataclasses import replace

import pytest
import torch

from sjdvp.config import RunSettings
from sjdvp.engine.cuda_graph import eager
from sjdvp.engine.devices import use_device
from sjdvp.engine.engine import Engine
from sjdvp.engine.oom import ElasticBatch
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.generic import load
from tests.engine.conftest import DECODERS, Queue, generate, settings, started, tokens_and_nfe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def on(index, folder, dtype=torch.float64):
    device = torch.device("cuda", index)
    use_device(device)
    return load(folder, DeviceMap(device), dtype)


def digests(model, decoder, step, batch_size=2):
    config = replace(settings(decoder), run=RunSettings(step=step))
    return tokens_and_nfe(generate(model, config, batch_size))


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_form_of_the_step_gives_the_same_tokens(folder, decoder):
    """On each GPU, the last one first: a graph captured on another GPU would be empty."""
    for index in reversed(range(torch.cuda.device_count())):
        model = on(index, folder)
        assert digests(model, decoder, "eager") == digests(model, decoder, "graph")


@pytest.mark.parametrize("decoder", ["sjd", "coupled-vp"])
def test_the_compiled_step_gives_the_same_tokens(folder, decoder):
    model = on(0, folder)
    assert digests(model, decoder, "eager") == digests(model, decoder, "compile")


@pytest.mark.parametrize("decoder", ["same-noise", "same-noise-vp"])
def test_same_noise_is_ar(folder, decoder):
    model = on(0, folder)
    tokens = [
        [digest for digest, _ in digests(model, name, "graph", batch_size)]
        for name, batch_size in (("ar", 1), (decoder, 3))
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_step_does_not_wait(folder, decoder):
    engine = started(on(0, folder), decoder)
    step = eager(engine.forward_pass, engine.decode)
    with torch.inference_mode():
        step(engine.state, engine.runner.kv_buckets[-1])  # libraries find their workspaces
        torch.cuda.set_sync_debug_mode("error")
        try:
            step(engine.state, engine.runner.kv_buckets[-1])
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_memory_that_runs_out_halves_the_batch(folder):
    model = on(0, folder)
    tried = []

    def make(batch_size):
        tried.append(batch_size)
        if batch_size > 2:
            torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
        return Engine(model, settings("coupled"), batch_size)

    assert list(ElasticBatch(make, 8).generate(Queue([]))) == []
    assert tried == [8, 4, 2]
