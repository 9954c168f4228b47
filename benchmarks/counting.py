"""Counts that need no clock: the memory traffic of a step, and how often the host waits for it."""

import torch
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sjdvp.decode.step import decode_step

_VIEWS = {
    "alias", "expand", "expand_as", "flatten", "permute", "select", "slice", "squeeze", "unsqueeze",
    "view", "view_as",
}  # fmt: skip
# A number of elements that depends on the data has to come to the host, as a value has.
_WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select"}


class Traffic(TorchDispatchMode):
    """Adds up the elements that operations read and write, in units of `size`."""

    def __init__(self, size):
        super().__init__()
        self.size, self.total = size, 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in _VIEWS:
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            self.total += sum(map(_stored, tensors)) / self.size
        return out


def _stored(tensor):
    """Return the elements in memory: an expanded tensor has fewer than its shape says."""
    return min(tensor.numel(), tensor.untyped_storage().nbytes() / tensor.itemsize)


@torch.inference_mode()
def passes(engine):
    """Return how many [B, W, V] tensors a step reads and writes outside its forward pass."""
    decoder, state = engine.decoder, engine.state
    logits_BWV = torch.randn(engine.batch_size, decoder.window, decoder.layout.vocab_size)
    with Traffic(logits_BWV.numel()) as traffic:
        decode_step(decoder, state, logits_BWV)
    return round(traffic.total, 1)


class _ListCalls(TorchFunctionMode):
    """Counts `tolist`, which on a CPU copies without any operation of the dispatcher."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.Tensor.tolist
        return func(*args, **(kwargs or {}))


def host_reads(function):
    """Call the function; return how many times the host read from the device.

    The profiler also counts reads inside torch's operations: torch.multinomial checks its argument
    by two.
    """
    with _ListCalls() as lists, profile(activities=[ProfilerActivity.CPU]) as profiled:
        function()
    events = profiled.key_averages()
    return lists.count + sum(event.count for event in events if event.key in _WAITS)
