"""The models. One file a family and one line here; a model knows no drafter, verifier or scheduler."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sjdvp.config import ModelConfig
from sjdvp.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from sjdvp.models.base import ImageModel

# name -> "module:function"; the function takes (ModelConfig, DeviceMap, torch.dtype). Imported on use.
REGISTRY = {
    "emoji": "sjdvp.models.generic:open_embedded",
    "generic": "sjdvp.models.generic:open_folder",
    "anole": "sjdvp.models.anole:open_anole",
    "emu3": "sjdvp.models.emu3:open_emu3",
    "emu3.5": "sjdvp.models.emu35:open_emu35",
    "janus": "sjdvp.models.janus:open_pro",
    "janus-1.3b": "sjdvp.models.janus:open_1",
    "liquid": "sjdvp.models.liquid:open_liquid",
    "llamagen-c2i": "sjdvp.models.llamagen:open_classes",
    "llamagen-t2i": "sjdvp.models.llamagen:open_captions",
    "lumina-mgpt": "sjdvp.models.lumina:open_one",
    "lumina-mgpt-2": "sjdvp.models.lumina:open_two",
}


def open_model(
    config: ModelConfig,
    device: "torch.device",
    dtype: "torch.dtype",
    free: "Mapping[torch.device, int] | None" = None,
) -> "ImageModel":
    """Load the model that `config` names onto `device`; `free` shares its layers out, see `sjdvp.models.device_map`.

    Raises ConfigError, WeightsError or DeviceError with what to do.
    """
    from sjdvp.models.device_map import DeviceMap  # it imports torch

    if config.backbone not in REGISTRY:
        raise ConfigError(
            f"unknown model {config.backbone!r}", f"known models: {', '.join(REGISTRY)}"
        )
    module, function = REGISTRY[config.backbone].split(":")
    opener: Callable[..., ImageModel] = getattr(importlib.import_module(module), function)
    return opener(config, DeviceMap(device, free or {}), dtype)
