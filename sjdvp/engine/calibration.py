"""What was found fastest on this machine: a window and a batch size for each model, number format and decoder, kept on disk."""

import contextlib
import dataclasses
import hashlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from sjdvp.config import RunConfig
from sjdvp.engine.neighbours import cache_folder
from sjdvp.weights import called


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest window and batch size."""

    window: int
    batch_size: int


def keep(config: RunConfig, device: torch.device, choice: Choice) -> None:
    """Remember what is best where `config` says auto; a cache folder that cannot be written only means that nothing is kept."""
    path = _path(config, device)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(choice)), encoding="utf-8")


def kept(config: RunConfig, device: torch.device) -> Choice | None:
    """Return what is remembered for these settings, if anything is."""
    try:
        choice = Choice(**json.loads(_path(config, device).read_text(encoding="utf-8")))
        return choice if min(choice.window, choice.batch_size) >= 1 else None
    except (OSError, ValueError, TypeError):  # none, or a torn or older one: as good as none
        return None


def _path(config: RunConfig, device: torch.device) -> Path:
    where = {
        "path": called(config.model.path),
        **dict.fromkeys(("revision", "tokenizer", "vq_decoder", "text_encoder")),
    }
    model, decoder = (
        dataclasses.asdict(config.model) | where,
        config.decoder,
    )  # a run in workers has paths for hub ids
    machine = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.node()} {platform.processor()}"
    )
    branches = config.sampling.cfg_scale != 1
    structure = [
        decoder.drafter,
        decoder.verifier,
        decoder.prediction.kind,
        decoder.init,
        decoder.window,
    ]
    facts = [machine, model, branches, structure, config.run.step, config.run.batch_size]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return cache_folder() / f"fastest-{digest}.json"
