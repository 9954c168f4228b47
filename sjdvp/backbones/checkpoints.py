"""Reading weights strictly: safetensors only, and every name and shape must fit; what does not is listed."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from sjdvp.errors import WeightsError

_LISTED = 5  # names of each kind in an error


def read_safetensors(folder: Path, stem: str = "model") -> dict[str, Tensor]:
    """Return the tensors of `stem`.safetensors, or of the shards that `stem`.safetensors.index.json names."""
    index = folder / f"{stem}.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        names = [f"{stem}.safetensors"]
    tensors: dict[str, Tensor] = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise WeightsError(f"{folder}: no {name}", "point --model at the folder that holds the weights")
        with safe_open(path, framework="pt") as file:
            tensors.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118 (not a dict)
    return tensors


def load_strict(module: nn.Module, tensors: Mapping[str, Tensor], what: str, dtype: torch.dtype, device: torch.device) -> None:
    """Put `tensors` into `module` (built on the meta device), cast and moved; every name and shape must fit.

    Raises WeightsError that lists missing, unexpected and reshaped names, at most five of each.
    """
    wanted = module.state_dict()
    problems = [
        _listed("missing", [name for name in wanted if name not in tensors]),
        _listed("unexpected", [name for name in tensors if name not in wanted]),
        _listed(
            "of another shape",
            [
                f"{name} {list(tensors[name].shape)} instead of {list(wanted[name].shape)}"
                for name in wanted
                if name in tensors and tensors[name].shape != wanted[name].shape
            ],
        ),
    ]
    if any(problems):
        raise WeightsError(f"the weights do not fit {what}: {'; '.join(p for p in problems if p)}", "is this the right --model?")
    module.load_state_dict({name: tensor.to(device, dtype) for name, tensor in tensors.items()}, assign=True)


def _listed(kind: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{len(names)} {kind} ({', '.join(names[:_LISTED])}{more})"
