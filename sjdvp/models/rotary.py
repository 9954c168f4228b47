"""The two orders in which rotary pairs are stored: side by side (Meta, LlamaGen) and in halves (transformers)."""

from torch import Tensor


def half_split(weight: Tensor, n_heads: int) -> Tensor:
    """Reorder the rows [heads * head size, ...] of a query or key weight from pairs (2j, 2j+1) to pairs (j, j + head size / 2)."""
    pairs = weight.reshape(n_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
