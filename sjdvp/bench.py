"""How fast a model decodes on this machine, over batch sizes and windows, beside its limits.

A decode step and the bare forward pass of the same shapes are timed alternating, while images are
being decoded: a slow moment of the machine affects both. `window: auto` and `batch_size: auto` are
measured in the same way, once per machine and model.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor

from sjdvp import rng
from sjdvp.config import RunConfig
from sjdvp.decode.state import State
from sjdvp.decode.step import admit
from sjdvp.engine.cuda_graph import Step, make_step, pick_mode
from sjdvp.engine.devices import GPU, device_name, pick_device, synchronize
from sjdvp.engine.disk_cache import Fastest, load_fastest, save_fastest
from sjdvp.engine.engine import Engine
from sjdvp.engine.estimate import Machine
from sjdvp.engine.loading import load_model
from sjdvp.engine.memory import kv_cache_bytes, largest_batch, slot_bytes, usual_batch_size
from sjdvp.engine.oom import must_fit, release_memory
from sjdvp.errors import PromptError
from sjdvp.models.base import ImageModel

PROMPT, CLASS = "a red apple", "207"  # the second for models that take ImageNet classes
_WARMUP = 2
_COPY_BYTES = 2**28
_AUTO_WINDOWS = (8, 16, 32)
_AUTO_STEPS = 48  # about one image of the embedded model, the first image rows of a large one


@dataclass(frozen=True, slots=True)
class Point:
    """The measurement of one batch size and window.

    `roof_ms` is a lower bound of a step: its memory traffic or its arithmetic, whichever is longer.
    """

    profile: str
    decoder: str
    lossless: bool
    batch_size: int
    window: int
    step_ms: float
    step_iqr_ms: float
    forward_ms: float
    step_over_forward: float
    weights_read_ms: float
    memory_ms: float
    arithmetic_ms: float
    roof_ms: float
    tokens_per_nfe: float | None  # None: random weights accept by chance
    images_per_s: float | None
    slot_bytes: int
    compile_s: float
    device: str
    dtype: str
    quantize: str | None
    threads: int


def measure_machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """Time a large copy, whose bytes are read and written once, and large matrix products."""
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = min(_seconds(lambda: target.copy_(source), device) for _ in range(5))
    side = 4096 if device.type == GPU else 512
    a, b = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    product_s = min(_seconds(lambda: torch.mm(a, b), device) for _ in range(5))
    return Machine(2 * _COPY_BYTES / copy_s, 2 * side**3 / product_s)


def bench(
    model: ImageModel,
    config: RunConfig,
    batch_sizes: Sequence[int],
    windows: Sequence[int],
    steps: int,
    *,
    trained: bool,
) -> Iterator[Point]:
    """Measure every pair of batch size and window that fits into memory.

    `trained` says whether the acceptance of these weights means anything. Raises DeviceError when
    memory runs out nevertheless.
    """
    machine = measure_machine(model.device, model.dtype)
    for batch_size, window in product(batch_sizes, windows):
        at_window = config.with_window(window)
        if batch_size > largest_batch(model, at_window):
            continue
        what = f"{batch_size} images at a time, window {window},"
        with must_fit(what, model.device, "measure smaller ones"):
            point = _measure(model, at_window, batch_size, steps, machine, trained=trained)
        yield point
        # an engine and its step refer to each other and would stay beside the next
        release_memory()


@torch.inference_mode()
def _measure(
    model: ImageModel,
    config: RunConfig,
    batch_size: int,
    steps: int,
    machine: Machine,
    *,
    trained: bool,
) -> Point:
    engine = Engine(model, config, batch_size)
    prefill_s = _seconds(lambda: admit_all(engine), model.device) / batch_size
    step_s, forward_s, n_tokens = _time(engine, steps)
    step, forward = statistics.median(step_s), statistics.median(forward_s)
    tokens_per_nfe = n_tokens / batch_size if trained else None
    image_s = None
    if tokens_per_nfe is not None:
        n_steps = (model.layout.length - 1) / tokens_per_nfe
        image_s = step * n_steps / batch_size + prefill_s + _pixels_s(model)
    weights_ms, memory_ms, arithmetic_ms = _roof(model, config, batch_size, machine)
    return Point(
        profile=config.profile,
        decoder=config.decoder.preset,
        lossless=config.decoder.lossless,
        batch_size=batch_size,
        window=config.decoder.width,
        step_ms=1e3 * step,
        step_iqr_ms=1e3 * _interquartile_range(step_s),
        forward_ms=1e3 * forward,
        step_over_forward=step / forward,
        weights_read_ms=weights_ms,
        memory_ms=memory_ms,
        arithmetic_ms=arithmetic_ms,
        roof_ms=max(memory_ms, arithmetic_ms),
        tokens_per_nfe=tokens_per_nfe,
        images_per_s=1 / image_s if image_s else None,
        slot_bytes=slot_bytes(model, config),
        compile_s=engine.compile_s,
        device=device_name(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        quantize=config.model.quantize,
        threads=torch.get_num_threads(),
    )


def admit_all(engine: Engine) -> None:
    """Start the same image in every slot, with seeds 0, 1, 2, ..."""
    try:
        prompt = engine.model.prompt(PROMPT)
    except PromptError:
        prompt = engine.model.prompt(CLASS)
    for slot in range(engine.batch_size):
        logits_1V = engine.runner.prefill(slot, prompt)
        admit(
            engine.decoder, engine.state, [slot], logits_1V, rng.keys([slot], engine.model.device)
        )


def _time(engine: Engine, n_steps: int) -> tuple[list[float], list[float], float]:
    """Return seconds of steps and of bare forward passes, and the tokens committed per step.

    Steps and forward passes take turns. All slots start again when an image is done. The first
    steps at a KV length are not timed: they may compile or capture.
    """
    length, device = engine.model.layout.length, engine.model.device
    forward_pass = bare_forward(engine)
    step_s: list[float] = []
    forward_s: list[float] = []
    n_tokens, n_warm = 0, Counter[int]()  # steps so far that were not timed, by KV bucket
    while len(step_s) < n_steps:
        n_B = engine.state.n_B.tolist()
        if max(n_B) == length:
            admit_all(engine)
            n_B = [1] * engine.batch_size
        kv_length = engine.runner.kv_bucket(dict(enumerate(n_B)))
        timed = n_warm[kv_length] == _WARMUP
        n_warm[kv_length] += not timed
        seconds_forward = _seconds(lambda: forward_pass(engine.state, kv_length), device)  # noqa: B023 (called at once)
        seconds_step = _seconds(lambda: engine.advance(kv_length), device)  # noqa: B023
        if timed:
            forward_s.append(seconds_forward)
            step_s.append(seconds_step)
            n_tokens += sum(engine.state.n_B.tolist()) - sum(n_B)
    return step_s, forward_s, n_tokens / n_steps


def bare_forward(engine: Engine) -> Step:
    """Return the forward pass alone, in the form of the step: eager, compiled or captured."""

    def no_decode(state: State, logits_BWV: Tensor) -> State:
        # A forward pass whose result is not used would be compiled away.
        return replace(state, bad_B=state.bad_B | logits_BWV[:, 0, 0].isnan())

    device = engine.model.device
    return make_step(engine.forward_pass, no_decode, pick_mode(engine.config, device), device)


def _pixels_s(model: ImageModel) -> float:
    tokens_N = torch.zeros(model.layout.rows * model.layout.columns).long()
    return _seconds(lambda: model.decode_pixels(tokens_N), model.device)


def _roof(
    model: ImageModel, config: RunConfig, batch_size: int, machine: Machine
) -> tuple[float, float, float]:
    """Return milliseconds to read the weights, weights and half-full caches, and to multiply."""
    branches = 1 if config.sampling.cfg_scale == 1 else 2
    weight_bytes = model.n_bytes_read
    cache_bytes = batch_size * kv_cache_bytes(model, config) / 2
    flops = 2 * model.n_weights * batch_size * branches * config.decoder.width
    return (
        1e3 * weight_bytes / machine.bytes_per_s,
        1e3 * (weight_bytes + cache_bytes) / machine.bytes_per_s,
        1e3 * flops / machine.flops_per_s,
    )


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    synchronize(device)
    started = perf_counter()
    work()
    synchronize(device)
    return perf_counter() - started


def _interquartile_range(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return high - low


def best(points: Sequence[Point]) -> Point:
    """Return the point with the most images, else the most verified tokens, per second."""
    return max(points, key=_speed)


def _speed(point: Point) -> float:
    return point.images_per_s or point.batch_size * point.window / point.step_ms / 1e6


def pick_window(config: RunConfig, tell: Callable[[str], None]) -> int:
    """Return the window with the most images per second for `config`, whose window is auto.

    With batch size 1 that is the window of least latency. Where nothing is stored it is measured,
    which takes the time of loading the model and of a few hundred steps. `tell` gets a message.
    """
    device = pick_device(config.run.device)
    fastest = load_fastest(config, device)
    if fastest:
        tell(f"window auto: {fastest.window}, as measured before on this machine")
        return fastest.window
    windows = ", ".join(map(str, _auto_windows(device)))
    tell(
        f"window auto: measuring windows {windows}, once on this machine for this model and decoder"
    )
    return _fastest_here(config, device).window


def _auto_windows(device: torch.device) -> tuple[int, ...]:
    """Return the windows to choose from; 64 is nearly free for one image on a GPU."""
    return _AUTO_WINDOWS if device.type == "cpu" else (*_AUTO_WINDOWS, 64)


def _fastest_here(config: RunConfig, device: torch.device) -> Fastest:
    model = load_model(config)
    if config.run.batch_size == "auto":
        fits = largest_batch(model, config.with_window(max(_auto_windows(device))))
        batch_sizes = sorted({1, min(usual_batch_size(device), fits)})
    else:
        batch_sizes = [config.run.batch_size]
    points = list(
        bench(model, config, batch_sizes, _auto_windows(device), _AUTO_STEPS, trained=True)
    )
    remember(config, device, points)
    del model
    release_memory()
    return _fastest(points)


def remember(config: RunConfig, device: torch.device, points: Sequence[Point]) -> None:
    """Store the fastest of the measured points, for each question that they answer.

    A question is a window, or auto, with a batch size, or auto. They answer `window: auto` only if
    all windows that it chooses from were measured.
    """
    measured = sorted({point.window for point in points})
    windows: list[int | Literal["auto"]] = [*measured]
    if {*_auto_windows(device)} <= {*measured}:
        windows.append("auto")
    sizes: list[int | Literal["auto"]] = ["auto", *sorted({point.batch_size for point in points})]
    for window in windows:
        for size in sizes:
            candidates = [
                point
                for point in points
                if window in ("auto", point.window) and size in ("auto", point.batch_size)
            ]
            if len(candidates) > 1:
                decoder = replace(config.decoder, window=window)
                question = replace(
                    config, decoder=decoder, run=replace(config.run, batch_size=size)
                )
                save_fastest(question, device, _fastest(candidates))


def _fastest(points: Sequence[Point]) -> Fastest:
    point = best(points)
    return Fastest(point.window, point.batch_size)
