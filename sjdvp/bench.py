"""How fast a model decodes on this machine, over batch sizes and windows, beside what the machine allows.

A step and the bare forward of the same shapes are timed in turns, on images that are being drawn: a slow moment strikes both.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from sjdvp import rng
from sjdvp.config import RunConfig
from sjdvp.decode.state import State
from sjdvp.decode.step import admit
from sjdvp.engine.cuda_graph import Step, make_step, pick_mode
from sjdvp.engine.engine import Engine
from sjdvp.engine.footprint import kv_cache_bytes, largest_batch, slot_bytes
from sjdvp.engine.memory import must_fit, release_memory
from sjdvp.engine.metrics import synchronize
from sjdvp.errors import PromptError
from sjdvp.interfaces import ImageModel

PROMPT, CLASS = "a red apple", "207"
_WARMUP = 2
_COPY_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine can do: bytes a second read by a copy, and operations a second in large matrix products."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """One batch size and window, measured. `roof_ms` is what a step must take at least: its memory traffic, or its arithmetic."""

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
    threads: int


def measure_machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """Time a large copy, whose bytes are read once and written once, and large matrix products."""
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = min(_seconds(lambda: target.copy_(source), device) for _ in range(5))
    side = 4096 if device.type == "cuda" else 512
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
    """Measure every pair of batch size and window that memory allows; `trained`: whether what the weights accept means anything.

    Raises DeviceError when memory runs out all the same.
    """
    machine = measure_machine(model.device, model.dtype)
    for batch_size, window in product(batch_sizes, windows):
        if batch_size > largest_batch(model, config.with_window(window)):
            continue
        with must_fit(
            f"{batch_size} images at a time, window {window},", model.device, "measure smaller ones"
        ):
            point = _measure(
                model, config.with_window(window), batch_size, steps, machine, trained=trained
            )
        yield point
        release_memory()  # an engine and its step refer to each other: the last one would lie beside the next


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
    prefill_s = _seconds(lambda: _seat_all(engine), model.device) / batch_size
    step_s, forward_s, n_steps, gained = _time(engine, steps)
    pixels_s = _seconds(
        lambda: model.pixels(torch.zeros(model.grid.rows * model.grid.columns).long()), model.device
    )
    length, step = model.grid.length, statistics.median(step_s)
    tokens_per_nfe = gained / n_steps / batch_size if trained else None
    image_s = (
        None
        if tokens_per_nfe is None
        else step * (length - 1) / tokens_per_nfe / batch_size + prefill_s + pixels_s
    )
    weights_ms, memory_ms, arithmetic_ms = _roof(model, config, batch_size, machine)
    return Point(
        profile=config.profile,
        decoder=config.decoder.preset,
        lossless=config.decoder.lossless,
        batch_size=batch_size,
        window=config.decoder.width,
        step_ms=1e3 * step,
        step_iqr_ms=1e3 * _spread(step_s),
        forward_ms=1e3 * statistics.median(forward_s),
        step_over_forward=step / statistics.median(forward_s),
        weights_read_ms=weights_ms,
        memory_ms=memory_ms,
        arithmetic_ms=arithmetic_ms,
        roof_ms=max(memory_ms, arithmetic_ms),
        tokens_per_nfe=tokens_per_nfe,
        images_per_s=1 / image_s if image_s else None,
        slot_bytes=slot_bytes(model, config),
        compile_s=engine.compile_s,
        device=_device_name(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
    )


def _seat_all(engine: Engine) -> None:
    try:
        prompt = engine.model.prompt(PROMPT)
    except PromptError:  # a model of classes
        prompt = engine.model.prompt(CLASS)
    for row in range(engine.batch_size):
        logits_1V = engine.runner.prefill(row, prompt)
        admit(engine.decoder, engine.state, [row], logits_1V, rng.keys([row], engine.model.device))


def _time(engine: Engine, steps: int) -> tuple[list[float], list[float], int, int]:
    """Return seconds of steps and of bare forward passes in turns, and how many tokens the steps committed; begins anew at the end."""
    length, device = engine.model.grid.length, engine.model.device
    forward_pass = _bare_forward(engine)
    step_s: list[float] = []
    forward_s: list[float] = []
    n_steps = gained = 0
    while len(step_s) < steps + _WARMUP:
        n_B = engine.state.n_B.tolist()
        if max(n_B) == length:
            _seat_all(engine)
            n_B = [1] * engine.batch_size
        kv_length = engine.runner.kv_bucket(dict(enumerate(n_B)))
        forward_s.append(_seconds(lambda: forward_pass(engine.state, kv_length), device))  # noqa: B023 (called at once)
        step_s.append(_seconds(lambda: engine.advance(kv_length), device))  # noqa: B023
        n_steps += 1
        gained += sum(engine.state.n_B.tolist()) - sum(n_B)
    return step_s[_WARMUP:], forward_s[_WARMUP:], n_steps, gained


def _bare_forward(engine: Engine) -> Step:
    """Return the forward alone, in the form that the step has: eager, compiled or captured for each cache length."""

    def nothing_more(state: State, logits_BWV: Tensor) -> State:
        return replace(
            state, bad_B=state.bad_B | logits_BWV[:, 0, 0].isnan()
        )  # a forward that nobody reads is compiled away

    device, lengths = engine.model.device, engine.runner.kv_buckets
    forward_pass = make_step(
        engine.forward_pass, nothing_more, pick_mode(engine.config, device), device, len(lengths)
    )
    for kv_length in lengths:
        forward_pass(engine.state, kv_length)
    return forward_pass


def _roof(
    model: ImageModel, config: RunConfig, batch_size: int, machine: Machine
) -> tuple[float, float, float]:
    """Return milliseconds to read the weights once, to read them and half-filled caches, and to multiply."""
    branches = 1 if config.sampling.cfg_scale == 1 else 2
    weight_bytes = model.n_weights * model.dtype.itemsize
    cache = batch_size * kv_cache_bytes(model, config) / 2
    flops = 2 * model.n_weights * batch_size * branches * config.decoder.width
    read_per_s = machine.bytes_per_s
    return (
        1e3 * weight_bytes / read_per_s,
        1e3 * (weight_bytes + cache) / read_per_s,
        1e3 * flops / machine.flops_per_s,
    )


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    synchronize(device)
    started = perf_counter()
    work()
    synchronize(device)
    return perf_counter() - started


def _spread(values: Sequence[float]) -> float:
    """Return the interquartile range."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return high - low


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def best(points: Sequence[Point]) -> Point:
    """Return the point with the most images a second; without that, with the most tokens looked at a second."""
    return max(
        points,
        key=lambda point: (
            point.images_per_s or point.batch_size * point.window / point.step_ms / 1e6
        ),
    )
