"""What to run on: the device, the dtype, the number of threads and of rows."""

import torch

from sjdvp.config import RunConfig
from sjdvp.engine.calibration import kept
from sjdvp.engine.footprint import largest_batch
from sjdvp.errors import DeviceError
from sjdvp.interfaces import ImageModel

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_CPU_ROWS = 4  # beyond this a CPU is busy with arithmetic, and more rows bring no more images
_GPU_ROWS = 16
_MANY_WEIGHTS = 50_000_000  # from here on a CPU's threads pay for themselves


def pick_device(name: str) -> torch.device:
    """Return the device of that name; auto is the first GPU, or the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"--device {name!r} is no device", "try cpu, cuda or cuda:1") from error
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        seen = f"this process sees {torch.cuda.device_count()} GPUs"
        raise DeviceError(f"--device {name}: {seen}", "see `sjdvp doctor`, or use --device cpu")
    return device


def use_device(device: torch.device) -> None:
    """Make a GPU the current one: what names no device, as streams and graphs do, is then there and not on the first GPU."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def visible_gpus() -> int:
    """Return how many GPUs this process may use; raises DeviceError when there are none."""
    count = torch.cuda.device_count()
    if count == 0:
        raise DeviceError(
            "--gpus all: this process sees no GPU",
            "use --workers N on a CPU machine; see `sjdvp doctor`",
        )
    return count


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of that name; auto is bfloat16 on GPUs that have it, float32 elsewhere."""
    if name != "auto":
        return _DTYPES[name]
    return (
        torch.bfloat16
        if device.type == "cuda" and torch.cuda.is_bf16_supported()
        else torch.float32
    )


def pick_batch_size(config: RunConfig, model: ImageModel) -> int:
    """Return how many images to decode at a time; auto is what `sjdvp bench` has found best here, as far as memory allows."""
    if config.run.batch_size != "auto":
        return config.run.batch_size
    known = kept(config, model.device)
    return min(
        known.batch_size if known else usual_batch_size(model.device), largest_batch(model, config)
    )


def usual_batch_size(device: torch.device) -> int:
    """Return how many images to decode at a time where nothing has been measured."""
    return _CPU_ROWS if device.type == "cpu" else _GPU_ROWS


def use_few_threads(model: ImageModel) -> None:
    """Use one thread for small models on a CPU: the threads of a small product wait for each other longer than they work."""
    if model.device.type == "cpu" and model.n_weights < _MANY_WEIGHTS:
        torch.set_num_threads(1)
