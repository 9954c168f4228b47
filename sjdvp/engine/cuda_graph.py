"""The decoding step behind one callable: eager, compiled, or replayed from a CUDA graph. The tokens are the same from each."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from sjdvp.config import RunConfig, StepMode
from sjdvp.decode.state import State
from sjdvp.errors import DeviceError

_P = ParamSpec("_P")
_R = TypeVar("_R")

ForwardPass = Callable[
    [State, int], Tensor
]  # the forward over all windows; the second argument says how many slots of the cache it sees
Decode = Callable[[State, Tensor], State]  # verify, commit and draft, by the logits of the forward
Step = Callable[[State, int], State]  # one after the other


def pick_mode(config: RunConfig, device: torch.device) -> StepMode:
    """Return how to run the step: auto is a graph on a GPU, where launches take longer than small kernels.

    It is eager on a CPU, and where layers are shared out over several devices, which no graph here holds. Raises DeviceError for
    what cannot be done.
    """
    run, decoder = config.run, config.decoder
    if (
        run.step == "compile"
        and device.type == "cpu"
        and (decoder.verifier == "same-noise" or decoder.drafter == "gumbel")
    ):
        # Measured with torch 2.13: a crash in the kernel made of argmin and the noise of every code, or minutes of compiling.
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
    forward_pass: ForwardPass, decode: Decode, mode: StepMode, device: torch.device, n_lengths: int
) -> Step:
    """Return the step in one of its forms. Compiled and captured ones are made on first use, for each of `n_lengths` cache lengths.

    On a CPU the forward stays as it is: what the compiler makes of its matrix products is slower than the library's (measured).
    On a GPU the compiled step, a few dozen kernels instead of hundreds, is captured as the plain one is.
    """
    if mode == "compile" and device.type == "cpu":
        return eager(forward_pass, _compiled(decode, 1))
    step = eager(forward_pass, decode)
    if mode == "compile":
        step = _compiled(step, n_lengths)
    return step if mode == "eager" else CudaGraphStep(step)


def eager(forward_pass: ForwardPass, decode: Decode) -> Step:
    """Return the step as it is."""
    return lambda state, kv_length: decode(state, forward_pass(state, kv_length))


def _compiled(work: Callable[_P, _R], n_forms: int) -> Callable[_P, _R]:
    # Each engine has a step of its own: what one has compiled must not count against the limit of another.
    limits: dict[str, Any] = {"recompile_limit": n_forms, "isolate_recompiles": True}
    return torch.compile(work, dynamic=False, fullgraph=True, **limits)


class CudaGraphStep:
    """One CUDA graph for each cache length, all on one state that is updated in place.

    The state given first becomes that state; the caller may go on writing to it between steps.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._state: State | None = None
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None  # of memory, shared by the graphs: they never run at the same time

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
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(
            aside
        ):  # kernels load and libraries find their workspaces; the result is dropped
            self._step(state, kv_length)
        torch.cuda.current_stream().wait_stream(aside)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Another thread may be turning tokens into pixels meanwhile; its allocations are no part of the graph.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            _copy(self._step(state, kv_length), state)
        return graph


def _copy(source: State, target: State) -> None:
    for old, new in zip(target.tensors(), source.tensors(), strict=True):
        if old is not new:
            old.copy_(new)
