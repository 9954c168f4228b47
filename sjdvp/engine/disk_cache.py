"""What the engine keeps on disk between runs: measured settings, the neighbour table of `lantern`.

Everything here can be computed again: a cache folder that cannot be written costs time, no result.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sjdvp.config import RunConfig
from sjdvp.decode.verify import nearest
from sjdvp.engine.devices import GPU, device_name
from sjdvp.weights import called


def cache_folder() -> Path:
    """Return the cache folder of sjdvp."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (Path.home() fails without HOME)
    return Path(root) / "sjdvp"


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest window and batch size that were measured."""

    window: int
    batch_size: int


def save_fastest(config: RunConfig, device: torch.device, fastest: Fastest) -> None:
    """Store the measured settings for this machine and for what `config` leaves to `auto`."""
    path = _fastest_path(config, device)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(fastest)), encoding="utf-8")


def load_fastest(config: RunConfig, device: torch.device) -> Fastest | None:
    """Return the settings measured before on this machine, if there are any."""
    try:
        table = json.loads(_fastest_path(config, device).read_text(encoding="utf-8"))
        fastest = Fastest(**table)
        return fastest if min(fastest.window, fastest.batch_size) >= 1 else None
    except (OSError, ValueError, TypeError):  # missing, incomplete, or of an older version
        return None


def _fastest_path(config: RunConfig, device: torch.device) -> Path:
    decoder = config.decoder
    facts = [
        device_name(device) if device.type == GPU else f"{platform.node()} {platform.processor()}",
        _model_facts(config),
        config.sampling.cfg_scale != 1,
        [decoder.drafter, decoder.verifier, decoder.prediction.kind, decoder.init, decoder.window],
        config.run.step,
        config.run.batch_size,
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return cache_folder() / f"fastest-{digest}.json"


def _model_facts(config: RunConfig) -> dict[str, object]:
    # A worker is given local paths in place of hub ids: they must not change the digest.
    paths = dict.fromkeys(("revision", "tokenizer", "vq_decoder", "text_encoder"))
    return dataclasses.asdict(config.model) | {"path": called(config.model.path), **paths}


def cached_neighbours(codebook_VE: Tensor, k: int) -> Tensor:
    """Return the k nearest tokens of each token by codebook distance [V, k], computed once."""
    vectors = codebook_VE.float().cpu().contiguous()
    shape = f"/{tuple(vectors.shape)}/{k}".encode()
    digest = hashlib.sha256(vectors.numpy().tobytes() + shape).hexdigest()[:24]
    path = cache_folder() / f"neighbours-{digest}.safetensors"
    if path.is_file():
        return load_file(path)["near"].long().to(codebook_VE.device)
    near_VK = nearest(codebook_VE.float(), k)
    with contextlib.suppress(OSError):
        _save_table(path, near_VK.to(torch.int32).cpu().contiguous())
    return near_VK


def _save_table(path: Path, near_VK: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        partial = Path(file.name)
    save_file({"near": near_VK}, partial)
    partial.replace(path)
