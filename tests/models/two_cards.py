"""Two made-up cards, `card:0` and `card:1`, that compute on the CPU; mixing them is an error.

Run as a program, because torch has one made-up kind of device for the whole process. Generates with
the layers of a model on one card, then shared out over both, and prints the digests of the tokens.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

MOVES = ("_to_copy", "copy_")  # what may read one device and write another


class OnCard(torch.Tensor):
    """A tensor on a card; `inner` on the CPU has its numbers."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> "OnCard":
        wrapped = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
        )
        wrapped.inner = inner
        return wrapped

    def tolist(self) -> list[Any]:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Cards(TorchDispatchMode):
    """Makes new tensors on the card that is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU; the result is where the arguments are, or where `device` says."""
    tensors = [
        value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)
    ]
    name = func._schema.name.removeprefix("aten::")
    devices = {
        tensor.device for tensor in tensors if tensor.device.type == "card" or tensor.ndim > 0
    }
    if len(devices) > 1 and name not in MOVES:
        raise RuntimeError(f"{name} meets {sorted(map(str, devices))}")
    own = next(
        (tensor.device for tensor in tensors if tensor.device.type == "card"), torch.device("cpu")
    )
    target = torch.device(kwargs.get("device") or own)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    bare_args, bare_kwargs = tree_map_only(OnCard, lambda tensor: tensor.inner, (args, kwargs))
    out = func(*bare_args, **bare_kwargs)
    if func._schema.is_mutable:
        return args[0]
    if target.type != "card":
        return out
    return tree_map_only(torch.Tensor, lambda tensor: OnCard(tensor, target), out)


def empty(
    size: Any,
    stride: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> OnCard:
    """Make a tensor on a card for torch itself: lists that become tensors bypass `Cards`."""
    return OnCard(torch.empty_strided(size, stride, dtype=dtype), device)


def copy(source: torch.Tensor, target: OnCard, non_blocking: bool = False) -> OnCard:
    """Fill a tensor of `empty`."""
    target.inner.copy_(source)
    return target


def main(folder: Path) -> None:
    """Generate on one card and on two."""
    # There tensors of our own kind can be views; set before it decorates anything.
    torch.inference_mode = torch.no_grad
    from sjdvp.config import SamplingConfig
    from sjdvp.models.device_map import DeviceMap
    from sjdvp.models.generic import load
    from tests.models.harness import digests, sample

    _setup_privateuseone_for_python_backend("card")
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", empty, "PrivateUse1")
    library.impl("_copy_from", copy, "PrivateUse1")
    first, second = torch.device("card", 0), torch.device("card", 1)
    for free in ({}, {first: 2**20, second: 2**20}):
        with Cards():
            model = load(folder, DeviceMap(first, free), torch.float32)
            prompts = [model.prompt(text) for text in ("a red dog", "blue", "a cat on a cat")]
            devices = [layer.keys.device for layer in model.new_cache(1, 1).kv_layers]
            images = sample(
                model, prompts, "coupled-vp", SamplingConfig(cfg_scale=2.0), n_sequences=2
            )
            print(*map(str, devices), *digests(images))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
