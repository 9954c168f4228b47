"""How often the host waits for the device, counted as it happens.

The profiler sees what torch reads inside its own operations too (torch.multinomial checks its argument by two reads). On a CPU
`tolist` copies without any operation of the dispatcher, so it is counted where it is called.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

# A count of elements that depends on the data has to come to the host, like a value.
WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select"}


class _Lists(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.n_calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.n_calls += func is torch.Tensor.tolist
        return func(*args, **(kwargs or {}))


def host_reads(work: Callable[[], Any]) -> int:
    """Do the work once; return how many times the host read from the device."""
    with _Lists() as lists, profile(activities=[ProfilerActivity.CPU]) as profiled:
        work()
    return lists.n_calls + sum(
        event.count for event in profiled.key_averages() if event.key in WAITS
    )
