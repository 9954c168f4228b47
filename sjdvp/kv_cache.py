"""Keys and values addressed per row: every row is at its own place, and rolling back means not advancing.

A slot is the position of a token in its row. Stale slots (drafts that were rejected) are hidden by the attention mask, because
they lie after the querying token, and overwritten when decoding gets there. Built on transformers' static cache layer, whose own
update knows only one length for all rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, StaticLayer

_ALIGNED = 8


def aligned(kv_length: int) -> int:
    """Return how many slots to allocate for `kv_length`: attention on a GPU copies a mask whose rows are no multiple of 8 long."""
    return -(-kv_length // _ALIGNED) * _ALIGNED


class _KVLayer(StaticLayer):
    keys: Tensor
    values: Tensor

    def __init__(self, kv_length: int, owner: "KVCache") -> None:
        super().__init__(kv_length)
        self._owner = owner

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [R, heads, W, head size] at the owner's slots; return the first `n_read` slots of the buffers."""
        # Not by scatter_: in 16 bits on a CPU that copies the whole buffer (7B shapes: 54 ms a call instead of 0.1).
        where = self._row_R1, self._owner.slots_RW.to(key_states.device)
        self.keys.transpose(1, 2).index_put_(where, key_states.transpose(1, 2))
        self.values.transpose(1, 2).index_put_(where, value_states.transpose(1, 2))
        n_read = self._owner.n_read
        return self.keys[:, :, :n_read], self.values[:, :, :n_read]

    def allocate(
        self,
        n_sequences: int,
        n_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Make the buffers."""
        example = torch.zeros(n_sequences, n_heads, 1, head_size, dtype=dtype, device=device)
        self.lazy_initialization(example, example)
        self._row_R1 = torch.arange(n_sequences, device=device)[:, None]

    def get_seq_length(self) -> int:
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.max_cache_len, 0


class KVCache(Cache):
    """Preallocated keys and values [layers][R, heads, C, head size], each layer's on its device.

    `slots_RW` says where the next update writes, `n_read` how far it reads.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        n_sequences: int,
        n_heads: int,
        kv_length: int,
        head_size: int,
        dtype: torch.dtype,
    ) -> None:
        self.slots_RW = torch.zeros(n_sequences, 1, dtype=torch.int64, device=devices[0])
        self.n_read = kv_length
        self.kv_layers = [_KVLayer(kv_length, self) for _ in devices]
        super().__init__(layers=list(self.kv_layers))
        for layer, device in zip(self.kv_layers, devices, strict=True):
            layer.allocate(n_sequences, n_heads, head_size, dtype, device)

    def copy_sequences(self, rows: list[int], other: "KVCache") -> None:
        """Overwrite the first slots of `rows` with the rows of a shorter cache."""
        for mine, theirs in zip(self.kv_layers, other.kv_layers, strict=True):
            kv_length = theirs.keys.shape[2]
            mine.keys[rows, :, :kv_length] = theirs.keys
            mine.values[rows, :, :kv_length] = theirs.values
