"""Strict and lazy reading of weights: every name and shape must fit, and errors list what does not.

A tensor is read when it is needed, cast, and released: loading takes the memory of the model and of
one tensor more. Pickled files (.pt, .pth, .bin, .ckpt) are read with `weights_only=True`, which
executes nothing.
"""

import json
import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from sjdvp.errors import WeightsError
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.quantize import quantize, with_quantized_layers

_LISTED = 5  # names of each kind in an error
_REMAP_AFTER = 2**26  # bytes
_WRAPPERS = ("model", "module", "state_dict")  # what trainers put around a state dict


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """Where a weight of a module comes from: a stored name, and a change to the stored tensor."""

    name: str
    change: Callable[[Tensor], Tensor] | None = None

    def of(self, stored: Tensor) -> Tensor:
        """Return the weight of the module, made from the stored tensor."""
        return stored if self.change is None else self.change(stored)


class Checkpoint(Mapping[str, Tensor]):
    """Named tensors on disk, read at access and not kept."""

    def __init__(
        self, where: str, shapes: Mapping[str, torch.Size], read: Callable[[str], Tensor]
    ) -> None:
        self.where, self.shapes, self._read = where, shapes, read

    def __getitem__(self, name: str) -> Tensor:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def under(self, prefix: str) -> "Checkpoint":
        """Return the tensors whose names start with `prefix`, named without it."""
        shapes = {
            name.removeprefix(prefix): shape
            for name, shape in self.shapes.items()
            if name.startswith(prefix)
        }
        return Checkpoint(self.where, shapes, lambda name: self._read(prefix + name))


def renamed(name: str, table: Iterable[tuple[str, str]]) -> str:
    """Return the stored name of a weight: each (ours, theirs) of `table` is replaced, in order."""
    for ours, theirs in table:
        name = name.replace(ours, theirs)
    return name


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a weights file, or a folder with one (or with shards and their index) of the usual name.

    Raises WeightsError when there is none, and says what the folder holds instead; and when the
    weights were quantized by another library.
    """
    if path.is_file():
        return _merge(path.name, [path])
    _refuse_quantized(path)
    for name in ("model.safetensors", "pytorch_model.bin", "model.ckpt"):
        if (path / name).is_file():
            return _merge(path.name, [path / name])
        if (path / f"{name}.index.json").is_file():
            return _merge(path.name, _shards(path, f"{name}.index.json"))
    raise WeightsError(
        f"{path}: no weights in it ({_what_is_there(path)})",
        "--model takes the folder or file of the whole model",
    )


def read_safetensors(folder: Path, stem: str = "model") -> Checkpoint:
    """Open `stem`.safetensors, or the shards that `stem`.safetensors.index.json names."""
    index = f"{stem}.safetensors.index.json"
    return _merge(
        folder.name,
        _shards(folder, index) if (folder / index).is_file() else [folder / f"{stem}.safetensors"],
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises WeightsError when the file is missing or not JSON."""
    if not path.is_file():
        raise WeightsError(
            f"{path.parent}: no {path.name} ({_what_is_there(path.parent)})",
            "is it the folder of the whole model?",
        )
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise WeightsError(f"{path}: not JSON ({error})", "download it again") from error
    return values


def load_strict(
    module: nn.Module,
    stored: Mapping[str, Tensor],
    what: str,
    dtype: torch.dtype,
    device_map: DeviceMap,
    source: Callable[[str], StoredWeight] = StoredWeight,
    ignore: str = "",
) -> None:
    """Fill `module`, built on the meta device, from `stored`: tensor by tensor, cast and moved.

    `source` gives, for each name of the module, where the weight comes from; `ignore` is a pattern
    of stored names that are not needed. On the meta device nothing is read, only checked. Weights
    that `device_map` wants quantized are so at once: they are never together in memory before.
    Raises WeightsError with the missing, unexpected and reshaped stored names, at most five of
    each; ConfigError when a layer cannot be quantized.
    """
    wanted = module.state_dict()
    sources = {name: source(name) for name in wanted}
    _check(wanted, sources, stored, what, ignore)
    kind = device_map.quantize
    quantized = with_quantized_layers(module, kind, dtype) if kind else frozenset()
    device_of = device_map.of(module, dtype)
    filled = {}
    for name, like in wanted.items():
        to_dtype = dtype if like.is_floating_point() else like.dtype
        own = torch.empty(like.shape, dtype=to_dtype, device=device_of(name))
        if not own.is_meta:
            own.copy_(sources[name].of(stored[sources[name].name]))
        if kind and name in quantized:
            stem = name.removesuffix("weight")
            filled[f"{stem}packed"], filled[f"{stem}scale"] = quantize(own, kind, dtype)
        else:
            filled[name] = own
    module.load_state_dict(filled, assign=True)


def _check(
    wanted: Mapping[str, Tensor],
    sources: Mapping[str, StoredWeight],
    stored: Mapping[str, Tensor],
    what: str,
    ignore: str,
) -> None:
    used = {source.name for source in sources.values()}
    unknown = [
        name for name in stored if name not in used and not (ignore and re.match(ignore, name))
    ]
    reshaped = []
    for name, like in wanted.items():
        if sources[name].name in stored:
            found = _shape(stored, sources[name])
            if found != like.shape:
                reshaped.append(
                    f"{sources[name].name} gives {list(found)} instead of {list(like.shape)}"
                )
    problems = [
        _listed("missing", sorted(used - stored.keys())),
        _listed("unexpected", unknown),
        _listed("of another shape", reshaped),
    ]
    if any(problems):
        raise WeightsError(
            f"the weights do not fit {what}: {'; '.join(p for p in problems if p)}",
            "is this the right --model?",
        )


def _shape(stored: Mapping[str, Tensor], source: StoredWeight) -> torch.Size:
    """Return the shape of a weight without reading it; the stored one if the change fails."""
    shape = (
        stored.shapes[source.name] if isinstance(stored, Checkpoint) else stored[source.name].shape
    )
    try:
        return source.of(torch.empty(shape, device="meta")).shape
    except (RuntimeError, IndexError):
        return shape


def _listed(kind: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{len(names)} {kind} ({', '.join(names[:_LISTED])}{more})"


def _merge(where: str, paths: Iterable[Path]) -> Checkpoint:
    """Return all tensors of some files as one checkpoint."""
    files = [_open_file(path) for path in paths]
    home = {name: file for file in files for name in file}
    shapes = {name: file.shapes[name] for name, file in home.items()}
    return Checkpoint(where, shapes, lambda name: home[name][name])


def _open_file(path: Path) -> Checkpoint:
    if not path.is_file():
        raise WeightsError(
            f"{path.parent}: no {path.name} ({_what_is_there(path.parent)})",
            "download the rest of the model",
        )
    try:
        if path.suffix == ".safetensors":
            return _open_safetensors(path)
        file = _Pickle(path)
        return Checkpoint(path.name, file.shapes(), file.read)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path}: holds more than tensors, so it was not read",
            "ask its author for a safetensors file",
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError) as error:
        raise WeightsError(
            f"{path}: cannot be read ({error})", "is it complete? download it again"
        ) from error


def _open_safetensors(path: Path) -> Checkpoint:
    """Open the file again for each read: the pages of a file that stays mapped count as memory."""

    def read(name: str) -> Tensor:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        shapes = {name: torch.Size(file.get_slice(name).get_shape()) for name in names}
    return Checkpoint(path.name, shapes, read)


class _Pickle:
    """A pickled file, mapped into memory, and mapped again now and then: read pages count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._can_map = zipfile.is_zipfile(path)  # not so before torch 1.6
        self._tensors, self._n_read = self._map(), 0

    def shapes(self) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        if self._can_map and self._n_read > _REMAP_AFTER:
            self._tensors, self._n_read = self._map(), 0
        tensor = self._tensors[name]
        self._n_read += tensor.nbytes
        return tensor

    def _map(self) -> dict[str, Tensor]:
        # Trainers store their command line beside the weights.
        with torch.serialization.safe_globals([Namespace]):
            content = torch.load(
                self._path, map_location="cpu", mmap=self._can_map, weights_only=True
            )
        if not isinstance(content, dict):
            raise RuntimeError(f"it holds a {type(content).__name__}, not named tensors")
        inner = next(
            (content[key] for key in _WRAPPERS if isinstance(content.get(key), dict)), content
        )
        return {name: value for name, value in inner.items() if isinstance(value, Tensor)}


def _refuse_quantized(folder: Path) -> None:
    """Raise WeightsError for weights that another library stored in a format of its own."""
    config = folder / "config.json"
    values = read_json(config) if config.is_file() else {}
    about = values.get("quantization_config") or values.get("compression_config")
    if about:
        named = isinstance(about, dict) and about.get("quant_method")
        method = named or "an unknown method"
        raise WeightsError(
            f"{folder}: its weights are already quantized ({method}), which is not supported",
            "give the full checkpoint; the setting model.quantize quantizes it while loading",
        )


def _shards(folder: Path, index: str) -> list[Path]:
    return [folder / name for name in sorted(set(read_json(folder / index)["weight_map"].values()))]


def _what_is_there(folder: Path) -> str:
    """Describe what a folder holds instead of a model."""
    if not folder.is_dir():
        return "there is no such folder"
    if (folder / "adapter_config.json").is_file():
        return "it is a LoRA adapter, not a model"
    if (
        any(folder.glob("tokenizer*"))
        and not any(folder.glob("*.safetensors"))
        and not any(folder.glob("*.bin"))
    ):
        return "it holds a tokenizer, not a model"
    names = sorted(path.name for path in folder.iterdir())[:_LISTED]
    return f"it holds {', '.join(names)}" if names else "it is empty"
