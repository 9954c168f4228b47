"""From prompt to pixels on a GPU that is not here: what is on the wrong device or waits, raises."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorDeviceMismatchError,
)

from sjdvp.bench import admit_all
from sjdvp.config import RunSettings
from sjdvp.decode import decoder
from sjdvp.decode.distributions import Sparse
from sjdvp.engine import engine
from sjdvp.engine.engine import Engine
from sjdvp.models.checkpoints import Checkpoint
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.generic import load
from sjdvp.models.vq import to_uint8
from sjdvp.presets import PRESETS
from tests.engine.conftest import settings
from tests.engine.fake_gpu import GPU, Transfers, fake_gpu

COPIES = 5  # to a GPU, for each image that starts: prompts, lengths, slot and key
READS = DataDependentOutputException, DynamicOutputShapeException


@pytest.fixture
def gpu(folder, monkeypatch):
    """A GPU that is not here; of weights only the shape is read."""
    monkeypatch.setattr(
        Checkpoint, "__getitem__", lambda self, name: torch.empty(self.shapes[name])
    )
    monkeypatch.setattr(engine, "_side_stream", lambda device: nullcontext())
    monkeypatch.setattr(
        engine,
        "cached_neighbours",
        lambda codebook_VE, k: torch.zeros(len(codebook_VE), k, dtype=torch.int64, device=GPU),
    )
    with fake_gpu():
        yield GPU


@pytest.fixture
def model(folder, gpu):
    return load(folder, DeviceMap(gpu), torch.bfloat16)


def started(model, preset):
    made = Engine(model, replace(settings(preset), run=RunSettings(step="eager")), 2)
    admit_all(made)
    return made


@pytest.mark.process
@pytest.mark.parametrize("preset", PRESETS)
@torch.inference_mode()
def test_from_prompt_to_pixels_everything_stays_on_the_gpu(model, preset):
    layout = model.layout
    with Transfers() as transfers:
        made = started(model, preset)
        assert len(transfers.found) <= 2 * COPIES, transfers.found
        transfers.found.clear()
        for kv_length in made.runner.kv_buckets:
            made.advance(kv_length)
        indices_1HW = torch.zeros(1, layout.rows, layout.columns, dtype=torch.int64, device=GPU)
        pixels_1HWC = to_uint8(model.vq_decoder(indices_1HW), truncate=False)
    assert {tensor.device for tensor in (*made.state.tensors(), pixels_1HWC)} == {GPU}
    assert not transfers.found


@pytest.mark.process
@pytest.mark.parametrize("preset", ["sjd", "best", "same-noise-vp"])
@torch.inference_mode()
def test_sparse_distributions_stay_on_the_gpu(model, preset, monkeypatch):
    monkeypatch.setattr(decoder, "_form_that_pays", lambda _, sampling, V: Sparse(V, V // 2))
    with Transfers() as transfers:
        made = started(model, preset)
        assert len(transfers.found) <= 2 * COPIES, transfers.found
        transfers.found.clear()
        made.advance(made.runner.kv_buckets[0])
    assert {tensor.device for tensor in made.state.tensors()} == {GPU}
    assert isinstance(made.decoder.form, Sparse) and not transfers.found


@pytest.mark.process
@pytest.mark.parametrize("quantize", ["int8", "fp8"])
def test_quantized_layers_stay_on_the_gpu(folder, gpu, quantize):
    quantized = load(folder, DeviceMap(gpu, quantize=quantize), torch.bfloat16)
    with torch.inference_mode(), Transfers() as transfers:
        made = started(quantized, "sjd")
        transfers.found.clear()
        made.advance(made.runner.kv_buckets[0])
    assert not transfers.found


@pytest.mark.process
@torch.inference_mode()
def test_the_fake_gpu_catches_what_a_gpu_waits_for(model):
    with Transfers() as transfers:
        state = started(model, "sjd").state
        transfers.found.clear()
        for read in (
            lambda: state.n_B[0].item(),
            lambda: bool(state.bad_B[0]),
            lambda: state.n_B.tolist(),
            lambda: state.draft_BW.nonzero(),
            lambda: state.draft_BW[state.draft_BW > 0],
            lambda: torch.equal(state.draft_BW, state.draft_BW),
        ):
            with pytest.raises(READS):
                read()
        with pytest.raises(FakeTensorDeviceMismatchError):
            _ = state.draft_BW + torch.zeros(2, 6)
        assert not transfers.found
        state.n_B[[0, 1]] = 1
        state.n_B.cpu()
        torch.tensor([1], device=GPU)
        assert transfers.found == ["_to_copy", "index_put_", "_to_copy", "_to_copy"]
