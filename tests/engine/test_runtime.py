"""The step as one graph: the same tokens from every form, the same bits from every cache length, and no host read inside."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sjdvp import rng
from sjdvp.config import RunSettings
from sjdvp.decode.state import State
from sjdvp.decode.step import admit
from sjdvp.engine.cuda_graph import CudaGraphStep, eager, pick_mode
from sjdvp.engine.engine import Engine
from sjdvp.engine.model_runner import ModelRunner
from sjdvp.errors import DeviceError
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.generic import load
from tests.engine.test_engine import CPU, generate, settings
from tests.engine.tiny import save_tiny_model

DECODERS = ["ar", "sjd", "sjdvp", "coupled", "coupled-vp", "same-noise-vp"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return load(folder, DeviceMap(CPU), torch.float64)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("decoder", ["sjd", "coupled-vp"])
def test_the_compiled_step_draws_the_same_images(model, decoder):
    plain = settings(decoder)
    compiled = replace(plain, run=RunSettings(step="compile"))
    a, b = generate(model, plain, 2), generate(model, compiled, 2)
    assert [(p.stats["token_sha256"], p.stats["nfe"]) for p in a] == [
        (p.stats["token_sha256"], p.stats["nfe"]) for p in b
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_part_of_the_cache_gives_the_bits_of_the_whole(tmp_path, dtype, batch_size):
    model = load(save_tiny_model(tmp_path, rows=20, columns=60), DeviceMap(CPU), dtype)
    forward = ModelRunner(model, batch_size, 5, 2.0)
    assert len(forward.kv_buckets) == 3
    for row in range(batch_size):
        forward.prefill(row, model.prompt("red dog on a blue cat"[: 8 * row + 3]))
    noise = torch.Generator().manual_seed(1)
    for first in range(0, 1200, 5):
        pos = torch.full((batch_size, 1), first) + torch.arange(5)
        tokens = torch.randint(24, pos.shape, generator=noise)
        kv_length = forward.kv_bucket(dict.fromkeys(range(batch_size), first + 1))
        whole = forward(tokens, pos)
        assert torch.equal(whole, forward(tokens, pos, kv_length))
    assert kv_length == forward.kv_buckets[-1]


class HostReads(TorchDispatchMode):
    """Counts the operations that make the host wait for the device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in {
            "item",
            "_local_scalar_dense",
            "nonzero",
            "is_nonzero",
            "equal",
            "masked_select",
        }:
            self.found.append(func)
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def started(model, decoder, batch_size=2):
    engine = Engine(model, settings(decoder), batch_size)
    for row in range(batch_size):
        admit(
            engine.decoder,
            engine.state,
            [row],
            engine.runner.prefill(row, model.prompt("red")),
            rng.keys([row]),
        )
    return engine


def step(engine):
    return eager(engine.forward_pass, engine.decode)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_step_reads_nothing_back(model, decoder):
    engine = started(model, decoder)
    with torch.inference_mode(), HostReads() as reads:
        step(engine)(engine.state, engine.runner.kv_buckets[-1])
        assert not reads.found
        engine.state.n_B[0].item()
        assert reads.found  # the count does count


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_step_on_a_gpu_stays_there(folder, decoder):
    """Without a GPU: on the meta device, where a read by the host raises, and so does a tensor that stayed on the host."""
    engine = Engine(
        load(folder, DeviceMap(torch.device("meta")), torch.float32), settings(decoder), 2
    )
    with torch.inference_mode():
        new = step(engine)(engine.state, engine.runner.kv_buckets[-1])
    assert {tensor.device.type for tensor in new.tensors()} == {"meta"}


def test_a_graph_needs_a_gpu():
    def picked(decoder, device, **run):
        return pick_mode(replace(settings(decoder), run=RunSettings(**run)), torch.device(device))

    assert picked("sjd", "cpu") == "eager"
    assert picked("sjd", "cuda") == "graph"
    assert picked("sjd", "cuda", device_map="auto") == "eager"
    with pytest.raises(DeviceError, match="no CUDA graphs"):
        picked("sjd", "cpu", step="graph")
    assert picked("sjd", "cpu", step="compile") == picked("ar", "cuda", step="compile") == "compile"
    for decoder in ("ar", "same-noise-vp"):
        with pytest.raises(DeviceError, match=f"not with the decoder {decoder} on a CPU"):
            picked(decoder, "cpu", step="compile")


def test_replay_keeps_one_state(model, monkeypatch):
    """The bookkeeping around the graphs, with the capture replaced: one state, written in place, a graph for each length."""
    engine, twin = started(model, "coupled"), started(model, "coupled")
    captured = []

    class Redo:
        def __init__(self, state, kv_length):
            captured.append(kv_length)
            self.redo = lambda: [
                a.copy_(b)
                for a, b in zip(
                    state.tensors(), step(engine)(state, kv_length).tensors(), strict=True
                )
            ]

        def replay(self):
            self.redo()

    monkeypatch.setattr(
        CudaGraphStep, "_capture", lambda self, state, kv_length: Redo(state, kv_length)
    )
    replayed, state, other = CudaGraphStep(step(engine)), engine.state, twin.state
    with torch.inference_mode():
        for kv_length in (20, 34, 34):
            new, other = replayed(state, kv_length), step(twin)(other, kv_length)
            assert new is engine.state and all(
                torch.equal(a, b) for a, b in zip(new.tensors(), other.tensors(), strict=True)
            )
        state = State(*[tensor.clone() for tensor in new.tensors()])
        assert replayed(state, 34) is new
    assert captured == [20, 34]
