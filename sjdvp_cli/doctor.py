"""`sjdvp doctor`: whether this machine is ready for a profile."""

import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Annotated

import typer

import sjdvp
from sjdvp import __version__
from sjdvp.config import ModelConfig
from sjdvp_cli.options import Settings, takes_options
from sjdvp_cli.tables import show_table

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "huggingface_hub", "numpy", "pillow")


@takes_options
def command(
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Tell what this machine has and what is missing."""
    config = settings.resolve().config
    problem, weights = _weights(config.model)
    devices, most = _devices()
    size = sum(file.stat().st_size for file in weights)
    if not problem and size > most:
        problem = f"{_bytes(size)}, more than any device has free"
    facts = {
        "sjdvp": __version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        **devices,
        "profile": config.profile,
        "licence": config.model.licence or "not said",
        "weights": problem or f"found, {_bytes(size)}",
    }
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        show_table(["what", "found"], list(facts.items()))
    return 2 if problem else 0


def _weights(model: ModelConfig) -> tuple[str, list[Path]]:
    """Return what is wrong with the weights, if anything, and their files."""
    place = _place(model)
    if place is None:
        return "not given: --model PATH", []
    files = [place] if place.is_file() else [file for file in place.rglob("*") if file.suffix in SUFFIXES]
    return ("" if files else f"not found at {place}"), files


def _place(model: ModelConfig) -> Path | None:
    """Return where the weights should lie: the given folder or file, the hub's cache, or the backbone's own folder."""
    if model.path is None:
        shipped = Path(sjdvp.__file__).parent / "backbones" / model.backbone
        return shipped / "model" if shipped.is_dir() else None
    local = Path(model.path).expanduser()
    if local.exists() or model.path.count("/") != 1:
        return local
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) / f"models--{model.path.replace('/', '--')}" / "snapshots" / (model.revision or "")


def _devices() -> tuple[dict[str, str], int]:
    """Return a line for each device, and the most memory that one of them has free."""
    import torch

    size = os.sysconf("SC_PAGE_SIZE")
    free, total = size * os.sysconf("SC_AVPHYS_PAGES"), size * os.sysconf("SC_PHYS_PAGES")
    facts, most = {"cpu": f"{os.cpu_count()} cores, {_bytes(free)} of {_bytes(total)} free"}, free
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        facts[f"cuda:{index}"] = f"{torch.cuda.get_device_name(index)}, {_bytes(free)} of {_bytes(total)} free"
        most = max(most, free)
    return facts, most


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
