"""Where a model's weights go: all to one device, or the layers of its decoder shared out over several.

Shared out, a forward passes from device to device; nothing is computed at the same time. Embeddings, head and pixel decoder stay
on one device, and so do the distributions. Keys and values lie beside their layer (see `sjdvp.kv_cache`). The layers are shared out here and
not by accelerate's `infer_auto_device_map`, which fills one device after the other and leaves no room for keys and values.
"""

from bisect import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import nn

from sjdvp.errors import DeviceError


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """One device, and the devices among which the layers of a decoder are shared out, with the bytes that are free on each."""

    device: torch.device
    free: Mapping[torch.device, int] = field(
        default_factory=dict
    )  # in the order of the layers; empty: all stay on `device`

    def of(self, network: nn.Module, dtype: torch.dtype) -> Callable[[str], torch.device]:
        """Return what tells the device of each weight of `network` (which may be on the meta device) by its name.

        Raises DeviceError when the weights, stored in `dtype`, are larger than what is free.
        """
        if not self.free:
            return lambda name: self.device
        stem, layers = next(
            (name, part)
            for name, part in network.named_modules()
            if isinstance(part, nn.ModuleList)
        )
        in_layers = _n_bytes(layers, dtype)
        free = dict(self.free)
        free[self.device] -= _n_bytes(network, dtype) - in_layers
        devices = share_out(len(layers), in_layers, free)

        def device_of(name: str) -> torch.device:
            inside = name.removeprefix(f"{stem}.")
            return self.device if inside == name else devices[int(inside.split(".")[0])]

        return device_of


def share_out(n_layers: int, n_bytes: int, free: Mapping[torch.device, int]) -> list[torch.device]:
    """Return the device of each of some equal layers: neighbours together, as many on each device as its share of what is free.

    So every device keeps room for its part of the keys and values. Raises DeviceError when `n_bytes` of layers do not fit.
    """
    rooms = [max(0, room) for room in free.values()]
    if n_bytes > sum(rooms):
        needed, there = (f"{count / 2**30:.1f} GiB" for count in (n_bytes, sum(rooms)))
        raise DeviceError(
            f"the layers take {needed}, and {len(rooms)} devices have {there} free for them",
            "see `sjdvp doctor`",
        )
    ends = list(accumulate(rooms))
    return [
        list(free)[bisect(ends, (layer + 0.5) / n_layers * ends[-1])] for layer in range(n_layers)
    ]


def compute_on(part: nn.Module, device: torch.device) -> None:
    """Bring the inputs of a part of a decoder to `device`, where its weights are, at every call; the cache stays where it is."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module  # the extra sjdvp[big]

    add_hook_to_module(part, AlignDevicesHook(device, skip_keys="cache"))


def _n_bytes(module: nn.Module, dtype: torch.dtype) -> int:
    return sum(weight.numel() for weight in module.parameters()) * dtype.itemsize
