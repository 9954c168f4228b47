"""How much memory decoding needs, computed from shapes, so that a batch is chosen that fits."""

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sjdvp.config import RunConfig
from sjdvp.decode.prediction import n_history
from sjdvp.kv_cache import aligned

if TYPE_CHECKING:
    from sjdvp.models.base import ImageModel  # it imports transformers

_PROBS_IN_A_STEP = 8  # [W, V] float32 tensors of one image alive at once: a generous estimate
_USABLE = 0.9  # of the free memory; the rest is for activations, pixels and the allocator


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run needs and finds, in bytes. `largest_batch` is 0 when the weights do not fit."""

    weights: int
    cache: int  # of one image
    distributions: int  # of one image
    free: int
    largest_batch: int


def memory_plan(model: "ImageModel", config: RunConfig, free: int) -> MemoryPlan:
    """Return what `model`, which may be on the meta device, needs of `free` bytes."""
    per_slot, cache = slot_bytes(model, config), kv_cache_bytes(model, config)
    n_slots = max(0, usable(free) - model.n_bytes) // per_slot
    return MemoryPlan(model.n_bytes, cache, per_slot - cache, free, n_slots)


def largest_batch(model: "ImageModel", config: RunConfig) -> int:
    """Return how many images fit beside the loaded model, on every device it uses; at least 1."""
    needed = _cache_by_device(model, config)
    needed[model.device] += slot_bytes(model, config) - needed.total()
    return max(1, min(usable(free_bytes(device)) // size for device, size in needed.items()))


def slot_bytes(model: "ImageModel", config: RunConfig) -> int:
    """Return the bytes of one image: keys and values, its distributions, and those of a step."""
    n_past = n_history(config.decoder.prediction)
    trail = max(config.decoder.width, model.layout.stride) if config.decoder.init == "above" else 0
    n_probs = config.decoder.width * (1 + n_past + _PROBS_IN_A_STEP) + trail
    return kv_cache_bytes(model, config) + 4 * model.layout.vocab_size * n_probs


def kv_cache_bytes(model: "ImageModel", config: RunConfig) -> int:
    """Return the bytes of keys and values of one image."""
    return _cache_by_device(model, config).total()


def _cache_by_device(model: "ImageModel", config: RunConfig) -> Counter[torch.device]:
    branches = 1 if config.sampling.cfg_scale == 1 else 2
    n_slots = branches * aligned(model.max_prompt + model.layout.length + config.decoder.width)
    size: Counter[torch.device] = Counter()
    for layer in model.new_cache(1, 1).kv_layers:
        size[layer.keys.device] += n_slots * (layer.keys.nbytes + layer.values.nbytes)
    return size


def usable(free: int) -> int:
    """Return how many of `free` bytes may be planned for."""
    return int(_USABLE * free)


def free_bytes(device: torch.device) -> int:
    """Return the free memory; on a CPU with what the system can free, as files it caches."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    available = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo, re.MULTILINE)
    assert available is not None  # since Linux 3.14
    return 1024 * int(available[1])
