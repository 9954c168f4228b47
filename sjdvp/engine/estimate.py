"""What to expect on a GPU that is not here: a model in full shape, counted on the meta device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sjdvp import rng
from sjdvp.config import RunConfig
from sjdvp.decode.step import admit
from sjdvp.engine.devices import GPU
from sjdvp.engine.engine import Engine
from sjdvp.engine.memory import MemoryPlan, memory_plan, usual_batch_size
from sjdvp.models.random_weights import open_random_model
from sjdvp.models.shapes import shape_of

_META = torch.device("meta")
_DTYPE = torch.bfloat16
_PRODUCTS = {"linear", "mm", "addmm", "bmm"}
_READS_PARTS = {"index", "embedding", "gather", "index_select"}  # as much as they return
_WRITES_PARTS = {"index_put_", "index_put", "scatter", "scatter_"}
_WIDEST = 64  # the window of the published lossless results


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine reaches: memory traffic, arithmetic, and the time to start an operation."""

    bytes_per_s: float
    flops_per_s: float
    launch_s: float = 0.0

    def seconds(self, work: "Work") -> float:
        """Return the expected time: each operation starts, then waits for memory or arithmetic."""
        return sum(
            self.launch_s + max(n_bytes / self.bytes_per_s, flops / self.flops_per_s)
            for n_bytes, flops in work.operations
        )


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by its data sheet: dense bfloat16 arithmetic, memory in decimal gigabytes."""

    name: str
    memory: int
    machine: Machine


# A kernel in a CUDA graph takes at least about 2 us: an estimate that nobody has measured here.
_GRAPH_LAUNCH_S = 2e-6
CARDS = {
    "24GB": Card("RTX 4090", 24 * 10**9, Machine(1.008e12, 165e12, _GRAPH_LAUNCH_S)),
    "48GB": Card("L40S", 48 * 10**9, Machine(0.864e12, 362e12, _GRAPH_LAUNCH_S)),
    "80GB": Card("H100 SXM", 80 * 10**9, Machine(3.35e12, 989e12, _GRAPH_LAUNCH_S)),
    "141GB": Card("H200", 141 * 10**9, Machine(4.8e12, 989e12, _GRAPH_LAUNCH_S)),
}


def widest_window(machine: Machine, n_sequences: int, itemsize: int) -> int:
    """Return the widest window, a power of two up to 64, that costs no more than reading weights.

    A weight of `itemsize` bytes is read once and multiplied with every token of the windows of all
    `n_sequences` (with CFG two for each image): 2 operations a token.
    """
    n_tokens = machine.flops_per_s / machine.bytes_per_s * itemsize / 2
    width = 1
    while 2 * width * n_sequences <= n_tokens and width < _WIDEST:
        width *= 2
    return width


@dataclass(slots=True)
class Work:
    """Operations that write a tensor, each with the bytes it reads and writes, and its flops."""

    operations: list[tuple[float, float]] = field(default_factory=list)

    @property
    def n_bytes(self) -> float:
        """Bytes that all operations read and write."""
        return sum(n_bytes for n_bytes, _ in self.operations)


@contextmanager
def counted() -> Iterator[Work]:
    """Count the operations inside the block, which should work on meta tensors."""
    work = Work()
    with torch.inference_mode(), _Attention(work), _Operations(work):
        yield work


class _Attention(TorchFunctionMode):
    """Counts attention as the one fused operation that it is on a GPU; computes nothing."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace attention by an empty result."""
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, keys, values = args
        n_bytes = 2 * q.nbytes + keys.nbytes + values.nbytes + kwargs["attn_mask"].nbytes
        self._work.operations.append((n_bytes, 4 * q.numel() * keys.shape[2]))
        with torch._C.DisableTorchFunction():
            return torch.empty_strided(q.shape, q.stride(), dtype=q.dtype, device=q.device)


class _Operations(TorchDispatchMode):
    """Counts the operations that write a tensor."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count it, unless it gives a view."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        inputs, outputs = _tensors((args, kwargs)), _tensors(result)
        storages = {tensor.untyped_storage()._cdata for tensor in inputs}
        is_view = outputs and outputs[0].untyped_storage()._cdata in storages
        if func._schema.is_mutable or not (is_view or name.startswith("empty")):
            self._work.operations.append(_cost(name, inputs, outputs))
        return result


def _cost(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> tuple[float, float]:
    if name in _READS_PARTS:
        return 2 * sum(map(_stored, outputs)), 0
    if name in _WRITES_PARTS:
        return 2 * _stored(inputs[-1]), 0
    flops = 2 * outputs[0].numel() * inputs[-2].shape[-1] if name in _PRODUCTS else 0
    return sum(map(_stored, inputs + outputs)), flops


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _stored(tensor: Tensor) -> int:
    """Return the bytes in memory: an expanded tensor has fewer than its shape says."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


@dataclass(frozen=True, slots=True)
class GpuEstimate:
    """What to expect; times follow from counted bytes and operations and from the data sheet."""

    card: str
    plan: MemoryPlan
    batch_size: int  # 0: does not fit
    window: int
    window_by_arithmetic: int  # see `widest_window`
    step_bytes: float  # read and written by a step at half the cache
    n_operations: int  # of a step
    weights_read_s: float  # no step can be shorter
    step_s: tuple[float, float]  # at the shortest and at the longest KV bucket
    prefill_s: float

    @property
    def fits(self) -> bool:
        """Whether one image fits."""
        return self.batch_size > 0


def estimate_on(config: RunConfig, card: Card) -> GpuEstimate:
    """Load, start an image and take a step at each KV bucket, on the meta device, and count.

    Raises ConfigError when the shape of the profile's model is unknown.
    """
    model = open_random_model(shape_of(config.profile), config, _META, _DTYPE)
    plan = memory_plan(model, config, card.memory)
    batch_size = min(plan.largest_batch, usual_batch_size(torch.device(GPU)))
    machine = card.machine
    engine = Engine(model, config, max(1, batch_size))
    with counted() as prefill:
        logits_1V = engine.runner.prefill(0, model.prompt(""))
        admit(engine.decoder, engine.state, [0], logits_1V, rng.keys([0], _META))
    steps = [_step(engine, kv_length) for kv_length in engine.runner.kv_buckets]
    middle = steps[(len(steps) - 1) // 2]
    return GpuEstimate(
        card=card.name,
        plan=plan,
        batch_size=batch_size,
        window=config.decoder.width,
        window_by_arithmetic=widest_window(
            machine, engine.batch_size * engine.runner.n_branches, _DTYPE.itemsize
        ),
        step_bytes=middle.n_bytes,
        n_operations=len(middle.operations),
        weights_read_s=model.n_weights * _DTYPE.itemsize / machine.bytes_per_s,
        step_s=(machine.seconds(steps[0]), machine.seconds(steps[-1])),
        prefill_s=machine.seconds(prefill),
    )


def _step(engine: Engine, kv_length: int) -> Work:
    with counted() as work:
        engine.advance(kv_length)
    return work
