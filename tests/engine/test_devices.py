"""What a GPU would meet, shown without one: devices, dtypes, streams, memory."""

import threading
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import Emu3VQVAEConfig

from sjdvp.engine import cuda_graph, devices, engine, memory
from sjdvp.engine.cuda_graph import CudaGraphStep
from sjdvp.engine.engine import Engine
from sjdvp.engine.model_runner import ModelRunner
from sjdvp.engine.oom import ElasticBatch, is_out_of_memory
from sjdvp.errors import DeviceError
from sjdvp.interfaces import EncodedPrompt, PromptBranch
from sjdvp.jobs import Job, token_digest
from sjdvp.models.vq import MovqDecoder
from sjdvp.profiles import resolve
from tests.engine.conftest import Queue, settings

CUDA = torch.device("cuda", 3)


@pytest.mark.parametrize("name", ["mps", "xpu", "meta", "cuda:-1", "hip", "cuda:0"])
def test_a_device_that_cannot_generate_is_refused(name):
    with pytest.raises(DeviceError):
        devices.pick_device(name)


@pytest.mark.parametrize(("kind", "expected"), [("cuda", "cuda"), ("xpu", "cpu"), ("mps", "cpu")])
def test_auto_is_a_gpu_of_cuda_or_rocm(monkeypatch, kind, expected):
    """With another accelerator it is the CPU, and that accelerator is refused in one line."""
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *, check_available: torch.device(kind)
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert devices.pick_device("auto") == torch.device(expected)
    if kind == "cuda":
        assert devices.pick_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(DeviceError):
        devices.pick_device("cuda:2" if kind == "cuda" else kind)


def test_auto_is_bfloat16_only_where_the_gpu_computes_in_it(monkeypatch):
    def t4(including_emulation=True):
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", t4)
    assert devices.pick_dtype("auto", CUDA) == torch.float32


def test_a_clock_reading_waits_for_its_own_stream_alone(monkeypatch):
    waited = []
    stream = SimpleNamespace(synchronize=lambda: waited.append("stream"))
    monkeypatch.setattr(
        torch.accelerator, "synchronize", lambda device=None: waited.append("device")
    )
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: stream)
    devices.synchronize(CUDA)
    assert waited == ["stream"]


def test_the_pixel_thread_is_on_the_gpu_of_the_engine(model, monkeypatch):
    threads = []
    monkeypatch.setattr(
        engine, "use_device", lambda device: threads.append(threading.current_thread().name)
    )
    list(Engine(model, settings("sjd"), 1).generate(Queue([Job(0, 0, 1, "red")])))
    assert [name for name in threads if name.startswith("pixels")]


def capture_that_ran_out() -> BaseException:
    """torch.cuda.graph ends the capture on the way out, which fails too and hides the cause."""
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error")
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        capture_that_ran_out(),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
        RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
    ],
    ids=["capture", "driver", "cublas", "cudnn"],
)
def test_these_say_that_memory_ran_out(error):
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


class Failing:
    """A VQ decoder that runs out of memory the first `times` times."""

    def __init__(self, decoder: nn.Module, times: int) -> None:
        self.decoder, self.times = decoder, times

    def codebook(self):
        return self.decoder.codebook()

    def __call__(self, codes, *, bands=False):
        self.times -= 1
        if self.times >= 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.decoder(codes, bands=bands)


@pytest.mark.parametrize(("times", "n_failed"), [(1, 0), (2, 1)])
def test_pixels_that_do_not_fit_cost_no_tokens(model, times, n_failed):
    prompts = []

    def prompt(text, negative):
        prompts.append(text)
        return model.prompt(text)

    broken = replace(model, prompt=prompt, vq_decoder=Failing(model.vq_decoder, times))
    jobs = [Job(i, 0, i, text) for i, text in enumerate(["red", "blue", "dog", "cat"])]
    make = ElasticBatch(lambda batch_size: Engine(broken, settings("sjd"), batch_size), 4)
    images = list(make.generate(Queue(jobs)))
    assert sum(image.error is not None for image in images) == n_failed
    assert sorted(prompts) == ["blue", "cat", "dog", "red"]  # none was decoded twice
    for image in images:  # also of the image that failed
        assert image.tokens is not None
        assert image.stats["token_sha256"] == token_digest(image.tokens)


def test_a_job_with_its_tokens_takes_no_forward_pass(model):
    engine = Engine(model, settings("sjd"), 1)
    (whole,) = engine.generate(Queue([Job(0, 0, 5, "red")]))
    engine.advance = None
    jobs = [Job(i, 0, 5, "red", whole.tokens) for i in range(3)]
    for image in engine.generate(Queue(jobs)):
        assert (image.image_HWC == whole.image_HWC).all()
        assert image.stats["token_sha256"] == whole.stats["token_sha256"]


def test_pixels_are_in_the_memory_plan():
    config = Emu3VQVAEConfig(
        codebook_size=32768, embed_dim=4, latent_channels=4, base_channels=256,
        channel_multiplier=[1, 2, 2, 4], num_res_blocks=2, attn_resolutions=[3], hidden_size=1024,
        num_attention_heads=1, temporal_downsample_factor=4,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        decoder = MovqDecoder(config, video=True).eval()
    model = SimpleNamespace(vq_decoder=decoder, layout=SimpleNamespace(rows=90, columns=90))
    assert 5e9 < memory.pixel_bytes(model) < 7e9  # Emu3 at 720x720


def test_the_largest_batch_leaves_room_for_the_pixels(model, monkeypatch):
    config = resolve("emoji", {"decoder.preset": "sjd"}, {}).config
    pixels, slot = memory.pixel_bytes(model), memory.slot_bytes(model, config)
    assert pixels > 0
    free = int((10.5 * slot + pixels) / memory.usable(1000) * 1000)
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    assert memory.largest_batch(model, config) == 10


def test_where_one_image_does_not_fit_its_pixels_are_made_in_bands(model, monkeypatch):
    config = resolve("emoji", {"decoder.preset": "sjd"}, {}).config
    slot = memory.slot_bytes(model, config)
    whole, bands = 10_000_000, 4_000_000
    monkeypatch.setattr(
        memory, "pixel_bytes", lambda model, *, bands=False: 4_000_000 if bands else 10_000_000
    )

    def plan(room):
        return memory.memory_plan(model, config, int((model.n_bytes + room) / 0.9) + 2)

    assert (plan(slot + whole).pixels, plan(slot + whole).largest_batch) == (whole, 1)
    assert (plan(slot + bands).pixels, plan(slot + bands).largest_batch) == (bands, 1)
    assert plan(slot + bands - 10).largest_batch == 0


def test_all_captures_share_one_stream_and_one_pool(monkeypatch):
    made, captured = [], []

    class Stream:
        def __init__(self):
            made.append(self)

        def wait_stream(self, other):
            pass

    class Capture(nullcontext):
        def __init__(self, graph, pool=None, stream=None, capture_error_mode="global"):
            super().__init__()
            captured.append((pool, stream))

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda: SimpleNamespace(wait_stream=lambda other: None)
    )
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    step = CudaGraphStep(lambda state, kv_length: state)
    for kv_length in (64, 128, 192):
        step(SimpleNamespace(tensors=list), kv_length)
    assert len(made) == 1
    assert captured == [((0, 1), made[0])] * 3


def test_prompts_of_like_length_share_a_shape(model, monkeypatch):
    shapes, hidden = set(), type(model).hidden

    def seen(self, x_RWD, *args):
        shapes.add(x_RWD.shape)
        return hidden(self, x_RWD, *args)

    monkeypatch.setattr(type(model), "hidden", seen)
    runner = ModelRunner(model, 1, 4, 2.0)
    for length in range(2, 9):
        branch = PromptBranch(torch.zeros(length, 32), torch.ones(length, dtype=torch.bool))
        with torch.inference_mode():
            runner.prefill(0, EncodedPrompt(branch, branch, length, truncated=False))
    assert len(shapes) == 1


def test_compile_works_with_an_older_torch(monkeypatch):
    def compile_of_2_11(model=None, *, fullgraph=False, dynamic=None, backend="inductor"):
        return model

    monkeypatch.setattr(torch, "compile", compile_of_2_11)
    assert cuda_graph.compiled(len)([1]) == 1
