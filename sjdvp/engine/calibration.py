"""The batch size that `sjdvp bench` found best: kept on disk, one number for each machine, model, number format and decoder."""

import contextlib
import hashlib
import json
import platform
from pathlib import Path

import torch

from sjdvp.config import RunConfig
from sjdvp.engine.neighbours import cache_folder
from sjdvp.interfaces import Backbone


def keep(backbone: Backbone, config: RunConfig, window: int, batch_size: int) -> None:
    """Remember the best batch size; a cache folder that cannot be written only means that nothing is remembered."""
    path = _path(backbone, config, window)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"batch_size": batch_size}), encoding="utf-8")


def kept(backbone: Backbone, config: RunConfig) -> int | None:
    """Return the remembered batch size, if there is one."""
    path = _path(backbone, config, config.decoder.window)
    if not path.is_file():
        return None
    batch_size = json.loads(path.read_text(encoding="utf-8")).get("batch_size")
    return batch_size if isinstance(batch_size, int) and batch_size > 0 else None


def _path(backbone: Backbone, config: RunConfig, window: int) -> Path:
    device, decoder = backbone.device, config.decoder
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.processor()} {torch.get_num_threads()}"
    facts = [
        machine,
        backbone.name,
        backbone.n_weights,
        backbone.grid.length,
        str(backbone.dtype),
        config.run.step,
        config.sampling.cfg_scale != 1,
        decoder.drafter,
        decoder.verifier,
        decoder.prior.kind,
        window,
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return cache_folder() / f"batch-{digest}.json"
