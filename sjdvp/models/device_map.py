"""The device of each weight: one for all, or the layers of the decoder shared out over several.

With several devices a forward pass goes from one to the next; no two compute at the same time.
Embeddings, head and VQ decoder stay on the first one, and so do the distributions. Keys and values
lie beside their layer (see `sjdvp.kv_cache`). accelerate's `infer_auto_device_map` is not used: it
fills one device after the other and leaves no memory for keys and values.
"""

from bisect import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import nn

from sjdvp.config import Quantization
from sjdvp.errors import DeviceError
from sjdvp.models.quantize import layers_of
from sjdvp.text import counted


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """A device, and the devices for the layers of a decoder with the free bytes of each.

    `free` is in the order of the layers; when it is empty, all layers stay on `device`. With
    `pixels_only` just the VQ decoder is loaded: all else stays on the meta device. With `quantize`
    the linear layers of the decoder are stored in that format.
    """

    device: torch.device
    free: Mapping[torch.device, int] = field(default_factory=dict)
    pixels_only: bool = False
    quantize: Quantization | None = None

    @property
    def of_network(self) -> torch.device:
        """The device of all but the VQ decoder, unless its layers are shared out."""
        return torch.device("meta") if self.pixels_only else self.device

    def of(self, network: nn.Module, dtype: torch.dtype) -> Callable[[str], torch.device]:
        """Return a function from the name of a weight of `network` to its device.

        `network` may be on the meta device. Raises DeviceError when its weights, stored in `dtype`,
        take more than the free bytes.
        """
        if not self.free:
            return lambda name: self.of_network
        stem, layers = layers_of(network)
        in_layers = _n_bytes(layers, dtype)
        free = dict(self.free)
        free[self.device] -= _n_bytes(network, dtype) - in_layers
        devices = share_out(len(layers), in_layers, free)

        def device_of(name: str) -> torch.device:
            inside = name.removeprefix(f"{stem}.")
            return self.device if inside == name else devices[int(inside.split(".")[0])]

        return device_of


def share_out(n_layers: int, n_bytes: int, free: Mapping[torch.device, int]) -> list[torch.device]:
    """Return the device of each of `n_layers` equal layers of `n_bytes` together.

    Each device gets consecutive layers in proportion to its free bytes, so that each keeps memory
    for its keys and values. Raises DeviceError when the layers do not fit.
    """
    sizes = [max(0, size) for size in free.values()]
    if n_bytes > sum(sizes):
        needed, there = (f"{count / 2**30:.1f} GiB" for count in (n_bytes, sum(sizes)))
        raise DeviceError(
            f"the layers take {needed}; {counted(len(sizes), 'device')} together: {there} free",
            "see `sjdvp doctor`",
        )
    ends = list(accumulate(sizes))
    return [
        list(free)[bisect(ends, (layer + 0.5) / n_layers * ends[-1])] for layer in range(n_layers)
    ]


def compute_on(part: nn.Module, device: torch.device) -> None:
    """Move the inputs of a part of a decoder to `device` at every call, but not the KV cache."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module  # the extra big

    add_hook_to_module(part, AlignDevicesHook(device, skip_keys="cache"))


def _n_bytes(module: nn.Module, dtype: torch.dtype) -> int:
    return sum(
        weight.numel() * (dtype if weight.is_floating_point() else weight.dtype).itemsize
        for weight in module.parameters()
    )
