"""The models. One file a family and one line here; a backbone knows no drafter, verifier or scheduler."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sjdvp.config import ModelConfig
from sjdvp.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from sjdvp.interfaces import Backbone

# name -> "module:function"; the function takes (ModelConfig, Place, torch.dtype). Imported on use.
REGISTRY = {
    "emoji": "sjdvp.backbones.generic:open_embedded",
    "generic": "sjdvp.backbones.generic:open_folder",
    "anole": "sjdvp.backbones.anole:open_anole",
    "emu3": "sjdvp.backbones.emu3:open_emu3",
    "janus": "sjdvp.backbones.janus:open_janus",
    "llamagen-c2i": "sjdvp.backbones.llamagen:open_classes",
    "llamagen-t2i": "sjdvp.backbones.llamagen:open_captions",
    "lumina-mgpt": "sjdvp.backbones.lumina:open_one",
    "lumina-mgpt-2": "sjdvp.backbones.lumina:open_two",
}


def open_backbone(
    config: ModelConfig, device: "torch.device", dtype: "torch.dtype", free: "Mapping[torch.device, int] | None" = None
) -> "Backbone":
    """Load the backbone that `config` names onto `device`; `free` shares its layers out, see `sjdvp.backbones.place`.

    Raises ConfigError, WeightsError or DeviceError with what to do.
    """
    from sjdvp.backbones.place import Place  # it imports torch

    if config.backbone not in REGISTRY:
        raise ConfigError(f"unknown backbone {config.backbone!r}", f"known backbones: {', '.join(REGISTRY)}")
    module, function = REGISTRY[config.backbone].split(":")
    opener: Callable[..., Backbone] = getattr(importlib.import_module(module), function)
    return opener(config, Place(device, free or {}), dtype)
