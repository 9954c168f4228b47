"""Scaled dot-product attention that never repeats keys: the query heads that share keys stand one after another in the window.

transformers' own `sdpa` repeats keys and values for every query head when there is a mask (Emu3: four copies of the whole cache at
each layer and step), and torch's `enable_gqa` rules out the memory-efficient kernel.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "sjdvp_sdpa"


def grouped_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend with queries [R, heads, W, D] to keys and values [R, kv heads, C, D] under the mask [R, 1, W, C] that is added.

    Returns [R, W, heads, D] and no weights, as transformers expects.
    """
    n_sequences, n_heads, window, size = query.shape
    n_kv = key.shape[1]
    group = n_heads // n_kv
    query = query.reshape(n_sequences, n_kv, group * window, size)
    mask = (
        attention_mask[:, :, None]
        .expand(-1, -1, group, -1, -1)
        .reshape(n_sequences, 1, group * window, -1)
    )
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(n_sequences, n_heads, window, size).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_sdpa)
