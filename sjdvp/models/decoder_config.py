"""What a config.json says about a decoder, in its old or its new form, as values for a configuration of transformers."""

from collections.abc import Mapping
from typing import Any

from sjdvp.errors import WeightsError

_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "max_position_embeddings",
    "attention_bias",
    "mlp_bias",
    "swin_norm",
)


def decoder_fields(values: Mapping[str, Any], default_base: float) -> dict[str, Any]:
    """Return the fields that shape a decoder; what a file leaves out is its family's default.

    Raises WeightsError for scaled rotary embeddings, which none of the models here was published with.
    """
    given = values.get("rope_parameters") or {}
    scaling = values.get("rope_scaling")
    if scaling or given.get("rope_type", "default") != "default":
        raise WeightsError(f"scaled rotary embeddings are not supported: {scaling or given}")
    base = given.get("rope_theta") or values.get("rope_theta") or default_base
    known = {key: values[key] for key in _FIELDS if values.get(key) is not None}
    return {**known, "rope_parameters": {"rope_type": "default", "rope_theta": base}}
