"""`sjdvp doctor`: whether this machine is ready for a profile."""

import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Annotated

import typer

from sjdvp import __version__
from sjdvp.config import ModelConfig
from sjdvp_cli.options import Settings, takes_options
from sjdvp_cli.tables import show_table

GIB = 2**30
PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "huggingface_hub", "numpy", "pillow")


@takes_options
def command(
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Tell what this machine has and what is missing."""
    config = settings.resolve().config
    found = _weights(config.model)
    size = sum(file.stat().st_size for file in found)
    facts = {
        "sjdvp": __version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "cpu": f"{os.cpu_count()} cores, {_memory()} of memory",
        **_devices(),
        "profile": config.profile,
        "licence": config.model.licence or "not said",
        "weights": f"found, {size / GIB:.2f} GiB" if found else f"not found at {_place(config.model)}",
    }
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        show_table(["what", "found"], list(facts.items()))
    return 0 if found else 2


def _place(model: ModelConfig) -> Path:
    """Return where the weights should lie: the given folder or file, the hub's cache, or the backbone's own folder."""
    if model.path is None:
        import sjdvp

        return Path(sjdvp.__file__).parent / "backbones" / model.backbone / "model"
    local = Path(model.path).expanduser()
    if local.exists() or model.path.count("/") != 1:
        return local
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) / f"models--{model.path.replace('/', '--')}" / "snapshots" / (model.revision or "")


def _weights(model: ModelConfig) -> list[Path]:
    """Return the files of weights that are there."""
    place = _place(model)
    if place.is_file():
        return [place]
    return sorted(file for suffix in ("safetensors", "pt", "bin", "ckpt") for file in place.rglob(f"*.{suffix}"))


def _devices() -> dict[str, str]:
    import torch

    facts = {"threads": str(torch.get_num_threads())}
    if not torch.cuda.is_available():
        return {**facts, "gpu": "none"}
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        facts[f"cuda:{index}"] = f"{torch.cuda.get_device_name(index)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    return facts


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * size / GIB:.1f} GiB"
