"""The device, the dtype, the threads and the batch size of a run."""

import resource
import sys
from typing import TYPE_CHECKING

import torch

from sjdvp.config import RunConfig
from sjdvp.engine.disk_cache import load_fastest
from sjdvp.engine.memory import largest_batch
from sjdvp.errors import DeviceError
from sjdvp.text import counted

if TYPE_CHECKING:
    from sjdvp.models.base import ImageModel  # it imports transformers

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_CPU_BATCH = 4  # beyond this a CPU is bound by arithmetic, and more images at a time bring nothing
_GPU_BATCH = 16
_MANY_WEIGHTS = 50_000_000  # from here on, products are large enough for several CPU threads


def pick_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the first GPU, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hint = "use cpu, cuda or cuda:1"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"--device {name!r} is not a device", hint) from error
    if device.type not in ("cpu", "cuda"):  # MPS has no float64, meta computes nothing
        raise DeviceError(f"--device {name}: images are generated on cpu or cuda only", hint)
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and not 0 <= (device.index or 0) < n_gpus:
        visible = f"this process sees {counted(n_gpus, 'GPU')}"
        raise DeviceError(f"--device {name}: {visible}", "see `sjdvp doctor`, or use --device cpu")
    return device


def use_device(device: torch.device) -> None:
    """Make a GPU the current one: streams and graphs name no device and are made on that one."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def visible_gpus() -> int:
    """Return how many GPUs this process may use. Raises DeviceError when there are none."""
    count = torch.cuda.device_count()
    if count == 0:
        hint = "use --workers N on a CPU machine; see `sjdvp doctor`"
        raise DeviceError("--gpus all: this process sees no GPU", hint)
    return count


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of that name; `auto` is bfloat16 on GPUs that have it, else float32."""
    if name != "auto":
        return _DTYPES[name]
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bf16 else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype as in the settings: bf16, fp16 or fp32."""
    return next((name for name, known in _DTYPES.items() if known == dtype), str(dtype))


def pick_batch_size(config: RunConfig, model: "ImageModel") -> int:
    """Return the batch size; `auto` is the fastest that was measured here and fits into memory."""
    if config.run.batch_size != "auto":
        return config.run.batch_size
    fastest = load_fastest(config, model.device)
    wanted = fastest.batch_size if fastest else usual_batch_size(model.device)
    return min(wanted, largest_batch(model, config))


def usual_batch_size(device: torch.device) -> int:
    """Return the batch size of a machine on which nothing was measured."""
    return _CPU_BATCH if device.type == "cpu" else _GPU_BATCH


def use_few_threads(model: "ImageModel") -> None:
    """Use one thread for a small model on a CPU: its threads would wait longer than they work."""
    if model.device.type == "cpu" and model.n_weights < _MANY_WEIGHTS:
        torch.set_num_threads(1)


def device_name(device: torch.device) -> str:
    """Return what the vendor calls a GPU, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def synchronize(device: torch.device) -> None:
    """Wait for the work of this thread's stream, so that the next clock reading includes it.

    The pixels of other images have a stream of their own, and are not waited for.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes of this process so far: on its GPUs, or resident on a CPU."""
    if device.type == "cuda":  # several GPUs under a device map
        gpus = range(torch.cuda.device_count())
        return sum(torch.cuda.max_memory_allocated(index) for index in gpus)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
