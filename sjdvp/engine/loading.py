"""From a configuration to a loaded model and its engines."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import get_args

import torch

from sjdvp.config import ModelConfig, Quantization, RunConfig
from sjdvp.engine.devices import (
    GPU,
    count_gpus,
    dtype_name,
    pick_device,
    pick_dtype,
    use_device,
    use_few_threads,
)
from sjdvp.engine.engine import Engine, PixelDecoder
from sjdvp.engine.memory import MemoryPlan, free_bytes, memory_plan, pick_batch_size, usable
from sjdvp.engine.oom import ElasticBatch, must_fit
from sjdvp.engine.scheduler import EngineKind, Groups
from sjdvp.errors import ConfigError, DeviceError
from sjdvp.models import open_model
from sjdvp.models.base import ImageModel
from sjdvp.weights import pin, without_hub


@contextmanager
def open_engine(config: RunConfig) -> Iterator[Groups]:
    """Load the model of a configuration and build engines around it, as its jobs need them."""
    model = load_model(config)

    def make(kind: EngineKind) -> ElasticBatch:
        sized = model.at_size(*kind.size) if kind.size and model.at_size else model
        return ElasticBatch(
            lambda batch_size: Engine(sized, config, batch_size, guided=kind.guided),
            pick_batch_size(config, sized),
        )

    quantized = f", {config.model.quantize} weights" if config.model.quantize else ""
    where = f"{model.name} on {model.device}, {dtype_name(model.dtype)}{quantized}"
    batch = f"batch {pick_batch_size(config, model)}"
    yield Groups(make, config, description=f"{where}, {batch}")


@contextmanager
def open_engines(
    configs: Sequence[RunConfig], make: Callable[[ImageModel, RunConfig, int], Engine] = Engine
) -> Iterator[list[Engine]]:
    """Load the model that all `configs` share once, and build an engine for each, in their order.

    Raises DeviceError when they do not fit into memory together, also later, inside the context.
    """
    model = load_model(configs[0])
    what = f"the caches of {len(configs)} decoders at a time"
    hint = "compare fewer decoders, or use a smaller --batch-size"
    with must_fit(what, model.device, hint):
        yield [make(model, config, pick_batch_size(config, model)) for config in configs]


def load_model(config: RunConfig) -> ImageModel:
    """Load the model of a configuration. Raises ConfigError, WeightsError or DeviceError."""
    device, free = _device_and_free(config)
    use_device(device)
    with must_fit("the weights", device):
        model = open_model(config.model, device, pick_dtype(config.model.dtype, device), free)
    use_few_threads(model)
    return model


@contextmanager
def open_pixel_decoder(config: RunConfig) -> Iterator[PixelDecoder]:
    """Load the VQ decoder of a configuration. Raises ConfigError, WeightsError or DeviceError."""
    device = pick_device(config.run.device)
    use_device(device)
    with must_fit("the weights of the VQ decoder", device):
        model = open_model(pin(config.model), device, torch.float32, pixels_only=True)
    yield PixelDecoder(model, device)


def plan_loading(config: RunConfig) -> tuple[ModelConfig, MemoryPlan]:
    """Return where the weights of `load_model` are, and the memory they need.

    Every file is found and checked, nothing is read or downloaded. Raises what `load_model` raises.
    """
    device, free = _device_and_free(config)
    with without_hub():
        pinned = pin(config.model)
        model = open_model(pinned, torch.device("meta"), pick_dtype(config.model.dtype, device))
    return pinned, memory_plan(model, config, sum(map(free_bytes, free or [device])))


def plan_formats(config: RunConfig) -> dict[str, MemoryPlan | None]:
    """Return `plan_loading` by format of the weights; None for a format that they cannot have."""
    plans: dict[str, MemoryPlan | None] = {}
    for kind in (None, *get_args(Quantization)):
        model = replace(config.model, quantize=kind)
        try:
            plans[kind or "not quantized"] = plan_loading(replace(config, model=model))[1]
        except ConfigError:
            plans[kind] = None
    return plans


def _device_and_free(config: RunConfig) -> tuple[torch.device, dict[torch.device, int]]:
    """Return the main device, and with a device map the usable bytes of each GPU."""
    free = _all_gpus() if config.run.device_map else {}
    return next(iter(free), None) or pick_device(config.run.device), free


def _all_gpus() -> dict[torch.device, int]:
    if find_spec("accelerate") is None:
        raise ConfigError(
            "--device-map auto: the package accelerate is not installed",
            "in the checkout of sjdvp: pip install '.[big]'",
            "run.device_map",
        )
    gpus = [torch.device(GPU, index) for index in range(count_gpus())]
    if not gpus:
        raise DeviceError(
            "--device-map auto: this process sees no GPU", "leave it out; see `sjdvp doctor`"
        )
    return {gpu: usable(free_bytes(gpu)) for gpu in gpus}
