"""How much memory decoding needs, computed from shapes, so that a batch is chosen that fits."""

import os
import re
import weakref
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sjdvp.config import RunConfig
from sjdvp.decode.decoder import make_decoder
from sjdvp.decode.step import decode_step
from sjdvp.engine.devices import GPU
from sjdvp.engine.disk_cache import load_fastest
from sjdvp.kv_cache import aligned

if TYPE_CHECKING:
    from sjdvp.models.base import ImageModel  # it imports transformers

_META = torch.device("meta")
_CPU_BATCH = 4  # beyond this a CPU is bound by arithmetic, and more images at a time bring nothing
_GPU_BATCH = 16
# The memory of a step counts twice: once in the pool that all CUDA graphs share, and once on the
# stream where it runs before a capture.
_STEPS = 2
_USABLE = 0.9  # of the free memory; the rest is for activations, pixels and the allocator


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run needs and finds, in bytes. `largest_batch` is 0 when the weights do not fit."""

    weights: int
    cache: int  # of one image
    distributions: int  # of one image
    pixels: int  # peak of the VQ decoder, which decodes one image at a time
    free: int
    largest_batch: int


def memory_plan(model: "ImageModel", config: RunConfig, free: int) -> MemoryPlan:
    """Return what `model`, which may be on the meta device, needs of `free` bytes."""
    per_slot, cache = slot_bytes(model, config), kv_cache_bytes(model, config)
    pixels = pixel_bytes(model)
    room = usable(free) - model.n_bytes
    if room < pixels + per_slot:  # one image fits at most where its pixels are made in bands
        pixels = min(pixels, pixel_bytes(model, bands=True))
    n_slots = max(0, room - pixels) // per_slot
    return MemoryPlan(model.n_bytes, cache, per_slot - cache, pixels, free, n_slots)


def pick_batch_size(config: RunConfig, model: "ImageModel") -> int:
    """Return the batch size; `auto` is the fastest that was measured here and fits into memory."""
    if config.run.batch_size != "auto":
        return config.run.batch_size
    fastest = load_fastest(config, model.device)
    wanted = fastest.batch_size if fastest else usual_batch_size(model.device)
    return min(wanted, largest_batch(model, config))


def usual_batch_size(device: torch.device) -> int:
    """Return the batch size of a machine on which nothing was measured."""
    return _CPU_BATCH if device.type == "cpu" else _GPU_BATCH


def largest_batch(model: "ImageModel", config: RunConfig) -> int:
    """Return how many images fit beside the loaded model, on every device it uses; at least 1."""
    needed = _cache_by_device(model, config)
    needed[model.device] += slot_bytes(model, config) - needed.total()
    room = {device: usable(free_bytes(device)) for device in needed}
    room[model.device] -= pixel_bytes(model)
    return max(1, min(room[device] // size for device, size in needed.items()))


def slot_bytes(model: "ImageModel", config: RunConfig) -> int:
    """Return the bytes of one image: keys and values, its distributions, and those of a step."""
    step, state = decoding_bytes(model, config)
    return kv_cache_bytes(model, config) + state + _STEPS * step


def decoding_bytes(model: "ImageModel", config: RunConfig) -> tuple[int, int]:
    """Return the most bytes alive in the decoding of one image, and those kept between steps."""

    def neighbours(codebook_VE: Tensor, k: int) -> Tensor:
        return torch.zeros(
            len(codebook_VE), min(k, len(codebook_VE)), dtype=torch.int64, device=_META
        )

    def codebook() -> Tensor:
        return model.codebook().to(_META)

    decoder = make_decoder(config.decoder, config.sampling, model.layout, codebook, neighbours)
    state = decoder.idle_state(1, torch.promote_types(model.dtype, torch.float32), _META)
    logits_1WV = torch.zeros(1, decoder.window, model.layout.vocab_size, device=_META)
    with torch.no_grad(), _LiveBytes() as live:
        decode_step(decoder, state, logits_1WV)
    return live.most, sum(tensor.nbytes for tensor in state.tensors())


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


def pixel_bytes(model: "ImageModel", *, bands: bool = False) -> int:
    """Return the most bytes that decoding the pixels of one image holds, without the weights.

    Counted on the meta device, where nothing is computed. The workspaces of cuDNN come on top.
    `bands` counts the way that takes less memory, in bands of image rows.
    """
    decoder, layout = model.vq_decoder, model.layout
    if not isinstance(decoder, nn.Module):
        return 0
    weights = [*decoder.named_parameters(), *decoder.named_buffers()]
    on_meta = {name: torch.empty_like(weight, device=_META) for name, weight in weights}
    codes_1HW = torch.zeros(1, layout.rows, layout.columns, dtype=torch.int64, device=_META)
    with torch.no_grad(), _LiveBytes() as live:
        functional_call(decoder, on_meta, (codes_1HW,), {"bands": bands})
    return live.most


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of the results of operations that are alive, and their peak `most`."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count what it returns."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._alive:  # not a view
                    self._alive[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self._alive.pop, storage._cdata, None)
        self.most = max(self.most, sum(self._alive.values()))
        return result


def usable(free: int) -> int:
    """Return how many of `free` bytes may be planned for."""
    return int(_USABLE * free)


def free_bytes(device: torch.device) -> int:
    """Return the free memory; on a CPU with what the system can free, as files it caches."""
    if device.type == GPU:
        return torch.accelerator.get_memory_info(device)[0]
    try:
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    available = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo, re.MULTILINE)
    assert available is not None  # since Linux 3.14
    return 1024 * int(available[1])
