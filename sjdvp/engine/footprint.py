"""How much memory decoding takes, computed from shapes: so that a batch can be chosen that fits."""

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from sjdvp.config import RunConfig
from sjdvp.decode.prediction import make_predictor
from sjdvp.interfaces import ImageModel
from sjdvp.kv_cache import aligned

_LAWS_IN_A_STEP = 8  # [W, V] tensors alive at once for each row, in float32: a generous estimate
SHARE = 0.9  # of the free memory; the rest is for activations, pixels and the allocator


def kv_cache_bytes(model: ImageModel, config: RunConfig) -> int:
    """Return the bytes of keys and values of one image."""
    return _cache(model, config).total()


def _cache(model: ImageModel, config: RunConfig) -> Counter[torch.device]:
    """Return the bytes of keys and values of one image on each device that holds layers."""
    branches = 1 if config.sampling.cfg_scale == 1 else 2
    kv_length = branches * aligned(model.max_prompt + model.grid.length + config.decoder.width)
    on: Counter[torch.device] = Counter()
    for layer in model.new_cache(1, 1).kv_layers:
        on[layer.keys.device] += kv_length * (layer.keys.nbytes + layer.values.nbytes)
    return on


def slot_bytes(model: ImageModel, config: RunConfig) -> int:
    """Return the bytes that one image in flight takes: keys and values, its distributions now and before, and what a step holds."""
    n_past = make_predictor(config.decoder.prediction).history_length
    trail = max(config.decoder.width, model.grid.stride) if config.decoder.init == "above" else 0
    distribution = 4 * model.vocab_size
    return kv_cache_bytes(model, config) + distribution * (
        config.decoder.width * (1 + n_past + _LAWS_IN_A_STEP) + trail
    )


@dataclass(frozen=True, slots=True)
class Need:
    """What a run takes and finds, in bytes; `largest_batch` is the largest batch that fits, 0 when the weights alone do not."""

    weights: int
    cache: int  # of an image
    distributions: int  # of an image
    free: int
    largest_batch: int


def need(model: ImageModel, config: RunConfig, free: int) -> Need:
    """Return what `model`, which may be on the meta device, takes of `free` bytes."""
    row, cache = slot_bytes(model, config), kv_cache_bytes(model, config)
    return Need(
        model.n_bytes, cache, row - cache, free, max(0, int(SHARE * free) - model.n_bytes) // row
    )


def free_bytes(device: torch.device) -> int:
    """Return how much memory is free now; on a CPU with what the system can make free: files it keeps, as weights just read."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        available = re.search(
            r"^MemAvailable:\s*(\d+) kB$",
            Path("/proc/meminfo").read_text(encoding="ascii"),
            re.MULTILINE,
        )
    except OSError:  # no Linux
        available = None
    return (
        1024 * int(available[1])
        if available
        else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    )


def largest_batch(model: ImageModel, config: RunConfig) -> int:
    """Return how many images fit beside what is loaded, on every device that holds a part of it; at least 1."""
    on = _cache(model, config)
    on[model.device] += slot_bytes(model, config) - on.total()
    return max(1, min(int(SHARE * free_bytes(device)) // needed for device, needed in on.items()))
