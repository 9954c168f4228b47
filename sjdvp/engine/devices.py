"""The device, the dtype and the threads of a run; what torch tells of a device."""

import resource
import sys
from typing import TYPE_CHECKING

import torch

from sjdvp.errors import DeviceError
from sjdvp.text import counted

if TYPE_CHECKING:
    from sjdvp.models.base import ImageModel  # it imports transformers

# What torch calls the GPUs of CUDA and ROCm. Others are refused: MPS has no float64, and of XPU
# nobody has tried out graphs and attention.
GPU = "cuda"
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_MANY_WEIGHTS = 50_000_000  # from here on, products are large enough for several CPU threads


def pick_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the first GPU, else the CPU."""
    n_gpus = count_gpus()
    if name == "auto":
        return torch.device(GPU if n_gpus else "cpu")
    hint = f"use cpu, {GPU} or {GPU}:1"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"--device {name!r} is not a device", hint) from error
    if device.type not in ("cpu", GPU):
        raise DeviceError(f"--device {name}: images are generated on cpu or {GPU} only", hint)
    if device.type == GPU and not 0 <= (device.index or 0) < n_gpus:
        visible = f"this process sees {counted(n_gpus, 'GPU')}"
        raise DeviceError(f"--device {name}: {visible}", "see `sjdvp doctor`, or use --device cpu")
    return device


def use_device(device: torch.device) -> None:
    """Make a GPU the current one: streams and graphs name no device and are made on that one."""
    if device.type == GPU and device.index is not None:
        torch.accelerator.set_device_index(device)


def count_gpus() -> int:
    """Return how many GPUs this process may use."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return torch.accelerator.device_count() if accelerator and accelerator.type == GPU else 0


def visible_gpus() -> int:
    """Return how many GPUs this process may use. Raises DeviceError when there are none."""
    count = count_gpus()
    if count == 0:
        hint = "use --workers N on a CPU machine; see `sjdvp doctor`"
        raise DeviceError("--gpus all: this process sees no GPU", hint)
    return count


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of that name; `auto` is bfloat16 on GPUs that have it, else float32."""
    if name != "auto":
        return _DTYPES[name]
    # torch.accelerator does not tell whether a GPU computes in bfloat16 or emulates it.
    has_bf16 = device.type == GPU and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bf16 else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype as in the settings: bf16, fp16 or fp32."""
    return next((name for name, known in _DTYPES.items() if known == dtype), str(dtype))


def use_few_threads(model: "ImageModel") -> None:
    """Use one thread for a small model on a CPU: its threads would wait longer than they work."""
    if model.device.type == "cpu" and model.n_weights < _MANY_WEIGHTS:
        torch.set_num_threads(1)


def device_name(device: torch.device) -> str:
    """Return what the vendor calls a GPU, or `cpu`."""
    if device.type != GPU:
        return device.type
    return str(torch.get_device_module(device).get_device_name(device))


def synchronize(device: torch.device) -> None:
    """Wait for the work of this thread's stream, so that the next clock reading includes it.

    The pixels of other images have a stream of their own, and are not waited for.
    """
    if device.type == GPU:
        torch.accelerator.current_stream(device).synchronize()


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes of this process so far: on its GPUs, or resident on a CPU."""
    if device.type == GPU:  # several GPUs under a device map
        return sum(map(torch.accelerator.max_memory_allocated, range(count_gpus())))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
