"""One decode step, in three forms: eager, compiled, or replayed from a CUDA graph. Same tokens."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from sjdvp.config import RunConfig, StepMode
from sjdvp.decode.state import State
from sjdvp.errors import DeviceError

_P = ParamSpec("_P")
_R = TypeVar("_R")

ForwardPass = Callable[[State, int], Tensor]  # over all windows; the int is the KV length bucket
Decode = Callable[[State, Tensor], State]  # verify, commit and draft by the logits
Step = Callable[[State, int], State]  # a forward pass and a decode


def pick_mode(config: RunConfig, device: torch.device) -> StepMode:
    """Return how to run the step; `auto` is a CUDA graph on one GPU, else eager.

    On a GPU, launching small kernels takes longer than running them. A graph does not span GPUs.
    Raises DeviceError for a mode the device does not have.
    """
    run, decoder = config.run, config.decoder
    draws_noise_over_V = decoder.verifier == "same-noise" or decoder.drafter == "gumbel"
    if run.step == "compile" and device.type == "cpu" and draws_noise_over_V:
        # torch 2.13 crashes in the kernel that joins argmin and noise, or compiles for minutes.
        raise DeviceError(
            f"run.step compile: not with the decoder {decoder.preset} on a CPU",
            "use run.step eager",
        )
    if run.step == "graph" and device.type != "cuda":
        raise DeviceError(f"run.step graph: {device} has no CUDA graphs", "use eager or compile")
    if run.step == "auto":
        return "graph" if device.type == "cuda" and run.device_map is None else "eager"
    return run.step


def make_step(
    forward_pass: ForwardPass, decode: Decode, mode: StepMode, device: torch.device, n_buckets: int
) -> Step:
    """Return the step in one of its forms; it is compiled or captured at its first use per bucket.

    On a CPU only `decode` is compiled: compiled matrix products are slower there (measured).
    """
    if mode == "compile" and device.type == "cpu":
        return eager(forward_pass, _compiled(decode, 1))
    step = eager(forward_pass, decode)
    if mode == "compile":
        step = _compiled(step, n_buckets)
    return step if mode == "eager" else CudaGraphStep(step)


def eager(forward_pass: ForwardPass, decode: Decode) -> Step:
    """Return the step as it is."""
    return lambda state, kv_length: decode(state, forward_pass(state, kv_length))


def _compiled(function: Callable[_P, _R], n_shapes: int) -> Callable[_P, _R]:
    # Each engine has its own step: what one compiles must not count against another's limit.
    limits: dict[str, Any] = {"recompile_limit": n_shapes, "isolate_recompiles": True}
    known = inspect.signature(torch.compile).parameters  # torch before 2.13 has neither limit
    limits = {name: value for name, value in limits.items() if name in known}
    return torch.compile(function, dynamic=False, fullgraph=True, **limits)


class CudaGraphStep:
    """One CUDA graph per KV length bucket, all on one state that is updated in place.

    The first state it is given becomes that state; the caller may write to it between steps.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._state: State | None = None
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        # Shared by all captures: the graphs never run at the same time, and each new stream would
        # get a cuBLAS workspace of its own.
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, state: State, kv_length: int) -> State:
        """Take one step."""
        if self._state is None:
            self._state = state
        elif state is not self._state:
            _copy(state, self._state)
        if kv_length not in self._graphs:
            self._graphs[kv_length] = self._capture(self._state, kv_length)
        self._graphs[kv_length].replay()
        return self._state

    def _capture(self, state: State, kv_length: int) -> torch.cuda.CUDAGraph:
        # Made here, on the engine's GPU: torch's own capture stream is on the GPU that was current
        # when the process first captured.
        stream = self._stream = self._stream or torch.cuda.Stream()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries allocate workspaces; the result is dropped
            self._step(state, kv_length)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: the pixel thread may allocate meanwhile, which is not part of the graph.
        with torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"):
            _copy(self._step(state, kv_length), state)
        return graph


def _copy(source: State, target: State) -> None:
    for old, new in zip(target.tensors(), source.tensors(), strict=True):
        if old is not new:
            old.copy_(new)
