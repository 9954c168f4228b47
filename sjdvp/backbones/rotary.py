"""Rotary embeddings in checkpoints: pairs stored side by side (Meta, LlamaGen) or in halves (transformers), and their base."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sjdvp.errors import WeightsError


def half_split(weight: Tensor, n_heads: int) -> Tensor:
    """Reorder the rows [heads * head size, ...] of a query or key weight from pairs (2j, 2j+1) to pairs (j, j + head size / 2)."""
    pairs = weight.reshape(n_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def rope_parameters(values: Mapping[str, Any], default_base: float) -> dict[str, Any]:
    """Return the rotary parameters that a config.json gives, in its old or its new form.

    Raises WeightsError for scaled rotary embeddings, which none of the models here was published with.
    """
    given = values.get("rope_parameters") or {}
    scaling = values.get("rope_scaling")
    if scaling or given.get("rope_type", "default") != "default":
        raise WeightsError(f"scaled rotary embeddings are not supported: {scaling or given}")
    return {"rope_type": "default", "rope_theta": given.get("rope_theta") or values.get("rope_theta") or default_base}
