"""The models: one file for each family, one line in REGISTRY for each model."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sjdvp.config import ModelConfig
from sjdvp.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from sjdvp.models.base import ImageModel

# name: "module:function", imported at use; the function takes (ModelConfig, DeviceMap, dtype)
REGISTRY = {
    "emoji": "sjdvp.models.generic:open_embedded",
    "generic": "sjdvp.models.generic:open_folder",
    "anole": "sjdvp.models.chameleon:open_anole",
    "emu3": "sjdvp.models.emu3:open_emu3",
    "emu3.5": "sjdvp.models.emu35:open_emu35",
    "glm-image": "sjdvp.models.glm_image:open_glm_image",
    "janus": "sjdvp.models.janus:open_janus_pro",
    "janus-1.3b": "sjdvp.models.janus:open_janus_1_3b",
    "liquid": "sjdvp.models.liquid:open_liquid",
    "llamagen-c2i": "sjdvp.models.llamagen:open_llamagen_c2i",
    "llamagen-t2i": "sjdvp.models.llamagen:open_llamagen_t2i",
    "lumina-mgpt": "sjdvp.models.lumina:open_lumina_1",
    "lumina-mgpt-2": "sjdvp.models.lumina:open_lumina_2",
}


def open_model(
    config: ModelConfig,
    device: "torch.device",
    dtype: "torch.dtype",
    free: "Mapping[torch.device, int] | None" = None,
    *,
    pixels_only: bool = False,
) -> "ImageModel":
    """Load the model of `config` onto `device`, or its layers onto the devices of `free`.

    `free` gives the free bytes of each device, see `sjdvp.models.device_map`; with `pixels_only`
    the model can only decode pixels. Raises ConfigError, WeightsError or DeviceError.
    """
    from sjdvp.models.device_map import DeviceMap  # it imports torch

    if config.backbone not in REGISTRY:
        raise ConfigError(
            f"unknown backbone {config.backbone!r}", f"known backbones: {', '.join(REGISTRY)}"
        )
    module, function = REGISTRY[config.backbone].split(":")
    opener: Callable[..., ImageModel] = getattr(importlib.import_module(module), function)
    device_map = DeviceMap(device, free or {}, pixels_only, config.quantize)
    return opener(config, device_map, dtype)
