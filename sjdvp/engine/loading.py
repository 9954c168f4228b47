"""The model of a run, loaded where its settings say."""

from importlib.util import find_spec

import torch

from sjdvp.config import ModelConfig, RunConfig
from sjdvp.engine.devices import pick_device, pick_dtype, use_device, use_few_threads
from sjdvp.engine.footprint import SHARE, Need, free_bytes, need
from sjdvp.engine.memory import must_fit
from sjdvp.errors import ConfigError, DeviceError
from sjdvp.interfaces import ImageModel
from sjdvp.models import open_model
from sjdvp.weights import pin, without_hub


def load_model(config: RunConfig) -> ImageModel:
    """Load the model that a configuration names. Raises ConfigError, WeightsError or DeviceError with what to do."""
    device, free = _place(config)
    use_device(device)
    with must_fit("the weights", device):
        model = open_model(config.model, device, pick_dtype(config.model.dtype, device), free)
    use_few_threads(model)
    return model


def weigh(config: RunConfig) -> tuple[ModelConfig, Need]:
    """Return where all that `load_model` would load lies, and what it takes: all is found and checked, and nothing is read.

    Raises what `load_model` raises; nothing is downloaded.
    """
    device, free = _place(config)
    with without_hub():
        pinned = pin(config.model)
        model = open_model(pinned, torch.device("meta"), pick_dtype(config.model.dtype, device))
    return pinned, need(model, config, sum(map(free_bytes, free or [device])))


def _place(config: RunConfig) -> tuple[torch.device, dict[torch.device, int]]:
    """Return the device that embeds and draws, and the bytes that may be used on each GPU that shares the layers, if any do."""
    free = _all_gpus() if config.run.device_map else {}
    return next(iter(free), None) or pick_device(config.run.device), free


def _all_gpus() -> dict[torch.device, int]:
    """Return the visible GPUs, among which `run.device_map` shares the layers out, and the bytes that may be used on each."""
    if find_spec("accelerate") is None:
        raise ConfigError(
            "--device-map auto: the package accelerate is not installed",
            'pip install "sjdvp[big]"',
            "run.device_map",
        )
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if not gpus:
        raise DeviceError(
            "--device-map auto: this process sees no GPU", "leave it out; see `sjdvp doctor`"
        )
    return {gpu: int(SHARE * free_bytes(gpu)) for gpu in gpus}
