"""One decode step, in three forms: eager, compiled, or replayed from a CUDA graph. Same tokens."""

import inspect
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from sjdvp.config import RunConfig, StepMode
from sjdvp.decode.state import State
from sjdvp.engine.devices import GPU
from sjdvp.engine.oom import is_out_of_memory, release_memory
from sjdvp.errors import DeviceError
from sjdvp.models.layers import EAGER_PARTS, LayerParts

_log = logging.getLogger(__name__)
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
            f"run.step compile does not work with the decoder {decoder.preset} on a CPU",
            "use run.step eager",
        )
    if run.step == "graph" and device.type != GPU:
        raise DeviceError(f"run.step graph: {device} has no CUDA graphs", "use eager or compile")
    if run.step == "auto":
        return "graph" if device.type == GPU and run.device_map is None else "eager"
    return run.step


def make_step(
    forward_pass: ForwardPass, decode: Decode, mode: StepMode, device: torch.device
) -> Step:
    """Return the step in one of its forms; it is compiled or captured at its first use.

    `decode` is compiled once: it does not know the KV length. Of the forward pass, the layers are,
    see `layer_parts`. On a GPU the compiled step is captured as well.
    """
    step = eager(forward_pass, compiled(decode) if mode == "compile" else decode)
    return CudaGraphStep(step) if device.type == GPU and mode != "eager" else step


def layer_parts(mode: StepMode, device: torch.device) -> LayerParts:
    """Return the parts of a layer for that form of the step.

    All layers and KV lengths share them. Not compiled on a CPU: inductor does not take packed
    weights, and with others matrix products are slower than all that compiling saves (measured).
    """
    if mode == "compile" and device.type != "cpu":
        return LayerParts(compiled(EAGER_PARTS.before), compiled(EAGER_PARTS.after))
    return EAGER_PARTS


def eager(forward_pass: ForwardPass, decode: Decode) -> Step:
    """Return the step as it is."""
    return lambda state, kv_length: decode(state, forward_pass(state, kv_length))


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that is compiled, as one graph, at its first call."""
    # Each engine has its own: what one compiles must not count against the limit of another.
    known = inspect.signature(torch.compile).parameters  # torch before 2.13 has no such option
    options: dict[str, Any] = {"isolate_recompiles": True} if "isolate_recompiles" in known else {}
    return torch.compile(function, dynamic=False, fullgraph=True, **options)


class CudaGraphStep:
    """One CUDA graph per KV length bucket in use, all on one state that is updated in place.

    The first state it is given becomes that state; the caller may write to it between steps. When
    memory runs out in a capture, no more is captured: steps of the other buckets are eager.
    All by torch.cuda, which is ROCm's too: torch.accelerator has graphs only from torch 2.13 on.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._state: State | None = None
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._fits = True  # the next capture, as far as is known
        # Shared by all captures: the graphs never run at the same time and leave nothing behind,
        # so they take the memory of one step. Each new stream would get a cuBLAS workspace.
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, state: State, kv_length: int) -> State:
        """Take one step."""
        if self._state is None:
            self._state = state
        elif state is not self._state:
            _copy(state, self._state)
        if kv_length not in self._graphs and self._fits:
            self._try_to_capture(self._state, kv_length)
        if kv_length in self._graphs:
            self._graphs[kv_length].replay()
        else:
            _copy(self._step(self._state, kv_length), self._state)
        return self._state

    def _try_to_capture(self, state: State, kv_length: int) -> None:
        try:
            self._graphs[kv_length] = self._capture(state, kv_length)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._fits = False
            _log.warning(
                "sjdvp: no memory for another CUDA graph: some steps run without, which is slower; "
                "a smaller --batch-size avoids it"
            )
        if not self._fits:  # not in the except clause: the error holds tensors of its frames
            release_memory()

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
