"""The step as one graph: the same tokens from every form, the same bits from every cache length, and no host read inside."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sjdvp import rng
from sjdvp.backbones.generic import load
from sjdvp.backbones.place import Place
from sjdvp.config import RunSettings
from sjdvp.decode.step import admit
from sjdvp.decode.window import State
from sjdvp.engine.engine import Engine
from sjdvp.engine.forward import Forward
from sjdvp.engine.runtime import Replayed, eager, pick_mode
from sjdvp.errors import DeviceError
from tests.engine.test_engine import CPU, paint, settings
from tests.engine.tiny import save_tiny_model

DECODERS = ["ar", "sjd", "sjdvp", "coupled", "coupled-vp", "same-noise-vp"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def backbone(folder):
    return load(folder, Place(CPU), torch.float64)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("decoder", ["sjd", "coupled-vp"])
def test_the_compiled_step_draws_the_same_pictures(backbone, decoder):
    plain = settings(decoder)
    compiled = replace(plain, run=RunSettings(step="compile"))
    a, b = paint(backbone, plain, 2), paint(backbone, compiled, 2)
    assert [(p.stats["token_sha256"], p.stats["nfe"]) for p in a] == [(p.stats["token_sha256"], p.stats["nfe"]) for p in b]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_rows", [1, 3])
def test_a_part_of_the_cache_gives_the_bits_of_the_whole(tmp_path, dtype, n_rows):
    backbone = load(save_tiny_model(tmp_path, rows=20, columns=60), Place(CPU), dtype)
    forward = Forward(backbone, n_rows, 5, 2.0)
    assert len(forward.lengths) == 3
    for row in range(n_rows):
        forward.prefill(row, backbone.prompt("red dog on a blue cat"[: 8 * row + 3]))
    noise = torch.Generator().manual_seed(1)
    for first in range(0, 1200, 5):
        pos = torch.full((n_rows, 1), first) + torch.arange(5)
        codes = torch.randint(24, pos.shape, generator=noise)
        n_slots = forward.reach(dict.fromkeys(range(n_rows), first + 1))
        whole = forward(codes, pos)
        assert torch.equal(whole, forward(codes, pos, n_slots))
    assert n_slots == forward.lengths[-1]


class HostReads(TorchDispatchMode):
    """Counts the operations that make the host wait for the device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in {"item", "_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select"}:
            self.found.append(func)
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def started(backbone, decoder, n_rows=2):
    engine = Engine(backbone, settings(decoder), n_rows)
    for row in range(n_rows):
        admit(engine.decoder, engine.state, [row], engine.forward.prefill(row, backbone.prompt("red")), rng.keys([row]))
    return engine


def step(engine):
    return eager(engine.look, engine.decode)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_step_reads_nothing_back(backbone, decoder):
    engine = started(backbone, decoder)
    with torch.inference_mode(), HostReads() as reads:
        step(engine)(engine.state, engine.forward.lengths[-1])
        assert not reads.found
        engine.state.n_B[0].item()
        assert reads.found  # the count does count


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_step_on_a_gpu_stays_there(folder, decoder):
    """Without a GPU: on the meta device, where a read by the host raises, and so does a tensor that stayed on the host."""
    engine = Engine(load(folder, Place(torch.device("meta")), torch.float32), settings(decoder), 2)
    with torch.inference_mode():
        new = step(engine)(engine.state, engine.forward.lengths[-1])
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


def test_replay_keeps_one_state(backbone, monkeypatch):
    """The bookkeeping around the graphs, with the capture replaced: one state, written in place, a graph for each length."""
    engine, twin = started(backbone, "coupled"), started(backbone, "coupled")
    captured = []

    class Redo:
        def __init__(self, state, n_slots):
            captured.append(n_slots)
            self.redo = lambda: [a.copy_(b) for a, b in zip(state.tensors(), step(engine)(state, n_slots).tensors(), strict=True)]

        def replay(self):
            self.redo()

    monkeypatch.setattr(Replayed, "_capture", lambda self, state, n_slots: Redo(state, n_slots))
    replayed, state, other = Replayed(step(engine)), engine.state, twin.state
    with torch.inference_mode():
        for n_slots in (20, 34, 34):
            new, other = replayed(state, n_slots), step(twin)(other, n_slots)
            assert new is engine.state and all(torch.equal(a, b) for a, b in zip(new.tensors(), other.tensors(), strict=True))
        state = State(*[tensor.clone() for tensor in new.tensors()])
        assert replayed(state, 34) is new
    assert captured == [20, 34]
