"""The forms of the step: same tokens from each, same bits from every KV bucket."""

import shutil
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch

from sjdvp.config import RunSettings
from sjdvp.decode.state import State
from sjdvp.engine import cuda_graph
from sjdvp.engine.cuda_graph import CudaGraphStep, eager, layer_parts, pick_mode
from sjdvp.engine.model_runner import ModelRunner, _buckets
from sjdvp.errors import DeviceError
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.generic import load
from tests.engine.conftest import CPU, generate, settings, started, tokens_and_nfe
from tests.engine.tiny import save_tiny_model

META = torch.device("meta")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("decoder", ["sjd", "coupled-vp"])
def test_the_compiled_step_gives_the_same_images(model64, decoder):
    plain = settings(decoder)
    compiled = replace(plain, run=RunSettings(step="compile"))
    a, b = generate(model64, plain, 2), generate(model64, compiled, 2)
    assert tokens_and_nfe(a) == tokens_and_nfe(b)


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that torch.compile makes, run as they are."""
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    return made


def test_all_layers_and_kv_buckets_share_two_compiled_parts(model64, graphs):
    parts = layer_parts("compile", torch.device("cuda"))
    plain, runner = ModelRunner(model64, 2, 6, 2.0), ModelRunner(model64, 2, 6, 2.0, parts)
    tokens_BW, pos_BW = torch.randint(24, (2, 6)), torch.arange(6).expand(2, -1)
    with torch.inference_mode():
        for kv_length in (16, 24, None):
            logits_BWV = runner(tokens_BW, pos_BW, kv_length)
            assert torch.equal(logits_BWV, plain(tokens_BW, pos_BW, kv_length))
    assert len(graphs) == 2


@pytest.mark.process
@pytest.mark.parametrize("decoder", ["sjd", "sjdvp", "best"])
def test_the_decoding_is_compiled_once(model64, graphs, decoder):
    config = replace(settings(decoder), run=RunSettings(step="compile"))
    assert tokens_and_nfe(generate(model64, config, 2)) == tokens_and_nfe(
        generate(model64, settings(decoder), 2)
    )
    assert len(graphs) == 1


def test_memory_that_runs_out_in_a_capture_leaves_the_rest_eager(model64, monkeypatch):
    engine, twin = started(model64, "coupled"), started(model64, "coupled")
    tried, warnings = [], []

    def no_memory(self, state, kv_length):
        tried.append(kv_length)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(CudaGraphStep, "_capture", no_memory)
    monkeypatch.setattr(cuda_graph._log, "warning", lambda message, *_: warnings.append(message))
    graphs, state = CudaGraphStep(step(engine)), twin.state
    with torch.inference_mode():
        for kv_length in (20, 20, 34):
            new, state = graphs(engine.state, kv_length), step(twin)(state, kv_length)
            assert new is engine.state
            assert all(map(torch.equal, new.tensors(), state.tensors()))
    assert tried == [20]
    assert any("CUDA graph" in warning for warning in warnings)


def test_other_errors_of_a_capture_are_raised(model64, monkeypatch):
    def illegal(self, state, kv_length):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(CudaGraphStep, "_capture", illegal)
    engine = started(model64, "sjd")
    with pytest.raises(RuntimeError, match="not permitted"):
        CudaGraphStep(step(engine))(engine.state, 34)


@pytest.mark.process
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_kv_bucket_gives_the_bits_of_the_whole_cache(tmp_path, dtype, batch_size):
    model = load(save_tiny_model(tmp_path, rows=20, columns=60), DeviceMap(CPU), dtype)
    runner = ModelRunner(model, batch_size, 5, 2.0)
    assert len(runner.kv_buckets) == 3
    for slot in range(batch_size):
        runner.prefill(slot, model.prompt("red dog on a blue cat"[: 8 * slot + 3]))
    noise = torch.Generator().manual_seed(1)
    for first in range(0, 1200, 5):
        pos = torch.full((batch_size, 1), first) + torch.arange(5)
        tokens = torch.randint(24, pos.shape, generator=noise)
        kv_length = runner.kv_bucket(dict.fromkeys(range(batch_size), first + 1))
        whole = runner(tokens, pos)
        assert torch.equal(whole, runner(tokens, pos, kv_length))
    assert kv_length == runner.kv_buckets[-1]


def test_a_gpu_reads_little_more_of_the_cache_than_is_in_use():
    """16 captures share the memory of one; a CPU needs lengths that change no bit."""
    gpu = _buckets(2704, torch.device("cuda"), torch.bfloat16)
    assert gpu[0] == 192 and gpu[-1] == 2704 and len(gpu) == 15
    assert _buckets(2704, CPU, torch.float32) == (512, 1024, 1536, 2048, 2560, 2704)
    read = sum((end - start) * end for start, end in pairwise((0, *gpu)))
    assert read / 2704**2 < 0.54  # of the cache while an image grows; half is in use


def step(engine):
    return eager(engine.forward_pass, engine.decode)


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
        with pytest.raises(DeviceError, match=f"not work with the decoder {decoder} on a CPU"):
            picked(decoder, "cpu", step="compile")


def test_replay_keeps_one_state(model64, monkeypatch):
    """With the capture replaced: one state, updated in place, one graph per KV bucket."""
    engine, twin = started(model64, "coupled"), started(model64, "coupled")
    captured = []

    class EagerGraph:
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
        CudaGraphStep, "_capture", lambda self, state, kv_length: EagerGraph(state, kv_length)
    )
    graphs, state, other = CudaGraphStep(step(engine)), engine.state, twin.state
    with torch.inference_mode():
        for kv_length in (20, 34, 34):
            new, other = graphs(state, kv_length), step(twin)(other, kv_length)
            assert new is engine.state and all(
                torch.equal(a, b) for a, b in zip(new.tensors(), other.tensors(), strict=True)
            )
        state = State(*[tensor.clone() for tensor in new.tensors()])
        assert graphs(state, 34) is new
    assert captured == [20, 34]
