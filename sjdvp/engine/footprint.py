"""How much memory decoding takes, computed from shapes: so that a batch can be chosen that fits."""

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from sjdvp.cache import aligned
from sjdvp.config import RunConfig
from sjdvp.decode.prior import make_prior
from sjdvp.interfaces import Backbone

_LAWS_IN_A_STEP = 8  # [W, V] tensors alive at once for each row, in float32: a generous estimate
SHARE = 0.9  # of the free memory; the rest is for activations, pixels and the allocator


def cache_bytes(backbone: Backbone, config: RunConfig) -> int:
    """Return the bytes of keys and values of one image."""
    return _cache(backbone, config).total()


def _cache(backbone: Backbone, config: RunConfig) -> Counter[torch.device]:
    """Return the bytes of keys and values of one image on each device that holds layers."""
    branches = 1 if config.sampling.cfg_scale == 1 else 2
    n_slots = branches * aligned(backbone.max_prompt + backbone.grid.length + config.decoder.width)
    on: Counter[torch.device] = Counter()
    for layer in backbone.new_cache(1, 1).row_layers:
        on[layer.keys.device] += n_slots * (layer.keys.nbytes + layer.values.nbytes)
    return on


def row_bytes(backbone: Backbone, config: RunConfig) -> int:
    """Return the bytes that one image in flight takes: keys and values, its laws now and before, and what a step holds."""
    n_past = make_prior(config.decoder.prior).n_laws
    trail = max(config.decoder.width, backbone.grid.stride) if config.decoder.fresh == "above" else 0
    law = 4 * backbone.n_codes
    return cache_bytes(backbone, config) + law * (config.decoder.width * (1 + n_past + _LAWS_IN_A_STEP) + trail)


@dataclass(frozen=True, slots=True)
class Need:
    """What a run takes and finds, in bytes; `most_rows` is the largest batch that fits, 0 when the weights alone do not."""

    weights: int
    cache: int  # of an image
    laws: int  # of an image
    free: int
    most_rows: int


def need(backbone: Backbone, config: RunConfig, free: int) -> Need:
    """Return what `backbone`, which may be on the meta device, takes of `free` bytes."""
    row, cache = row_bytes(backbone, config), cache_bytes(backbone, config)
    return Need(backbone.n_bytes, cache, row - cache, free, max(0, int(SHARE * free) - backbone.n_bytes) // row)


def free_bytes(device: torch.device) -> int:
    """Return how much memory is free now; on a CPU with what the system can make free: files it keeps, as weights just read."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        available = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:  # no Linux
        available = None
    return 1024 * int(available[1]) if available else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def most_rows(backbone: Backbone, config: RunConfig) -> int:
    """Return how many images fit beside what is loaded, on every device that holds a part of it; at least 1."""
    on = _cache(backbone, config)
    on[backbone.device] += row_bytes(backbone, config) - on.total()
    return max(1, min(int(SHARE * free_bytes(device)) // needed for device, needed in on.items()))
