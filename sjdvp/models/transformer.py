"""The one place that touches transformers' internals: a decoder with our positions, mask and cache.

It works with any transformers 5.24 decoder whose forward takes `inputs_embeds`, `position_ids`
[R, W], an additive mask and `cache`: Llama, Qwen, Chameleon, Emu3, Gemma, Phi.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from sjdvp.errors import WeightsError
from sjdvp.kv_cache import KVCache
from sjdvp.models.device_map import compute_on
from sjdvp.models.layers import EAGER_PARTS, FusedDecoder, LayerParts, attend, fused
from sjdvp.models.quantize import QuantizedLinear

_ATTENTION = "sjdvp_sdpa"  # the name of our attention function in transformers' registry
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
    """Return what a config.json, old or new, says of a decoder, as fields of a transformers config.

    A field that the file lacks has its family's default. Raises WeightsError for scaled rotary
    embeddings, which no model here was published with.
    """
    given = values.get("rope_parameters") or {}
    scaling = values.get("rope_scaling")
    if scaling or given.get("rope_type", "default") != "default":
        raise WeightsError(f"scaled rotary embeddings are not supported: {scaling or given}")
    base = given.get("rope_theta") or values.get("rope_theta") or default_base
    known = {key: values[key] for key in _FIELDS if values.get(key) is not None}
    return {**known, "rope_parameters": {"rope_type": "default", "rope_theta": base}}


class Transformer:
    """A transformers decoder, from embeddings to the hidden states after its last norm.

    Its layers may lie on several devices (see `sjdvp.models.device_map`); inputs and outputs are on
    the device of the embeddings.
    """

    def __init__(self, decoder: PreTrainedModel, rotary: nn.Module | None = None) -> None:
        """Take a decoder with its weights in place; `rotary` replaces its rotary embedding.

        Without `rotary`, the decoder's own is made again: its angles are no weights, so a decoder
        that was built on the meta device has none.
        """
        config: Any = decoder.config
        decoder.set_attn_implementation(_ATTENTION)
        self._decoder: Any = decoder.eval().requires_grad_(False)
        example = next(decoder.parameters())
        self.device, self.dtype = example.device, example.dtype
        rotary = (rotary or type(self._decoder.rotary_emb)(config)).to(self.device)
        self._n_kv_heads = config.num_key_value_heads
        self._group = config.num_attention_heads // self._n_kv_heads
        self._decoder = fused(self._decoder, rotary)
        own_size = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self._is_fused = isinstance(self._decoder, FusedDecoder)
        first = self._decoder.layers[0]
        self._head_size = first.attention.head_size if self._is_fused else own_size
        self._devices = [next(layer.parameters()).device for layer in self._decoder.layers]
        if set(self._devices) != {self.device}:
            for layer, device in zip(self._decoder.layers, self._devices, strict=True):
                compute_on(layer, device)
            compute_on(self._decoder.norm, self.device)
        if self.device.type == "cuda":
            # On sm_90 and sm_100 torch prefers cuDNN's attention, which takes 50 to 450 ms to plan
            # every new shape, so every length of prompt.
            torch.backends.cuda.enable_cudnn_sdp(False)

    @property
    def n_weights(self) -> int:
        """Weights that a forward pass reads: all but the table of token embeddings."""
        table = self._decoder.get_input_embeddings().weight
        parts = [part for part in self._decoder.modules() if isinstance(part, QuantizedLinear)]
        stored = {weight for part in parts for weight in part.parameters()} | {table}
        others = (w.numel() for w in self._decoder.parameters() if w not in stored)
        return sum(others) + sum(part.n_weights for part in parts)

    @property
    def n_bytes_read(self) -> int:
        """Bytes of these weights."""
        return self.n_bytes - self._decoder.get_input_embeddings().weight.nbytes

    @property
    def n_bytes(self) -> int:
        """Bytes of all its weights."""
        return sum(weight.nbytes for weight in self._decoder.parameters())

    def new_cache(self, n_sequences: int, kv_length: int) -> KVCache:
        """Allocate the keys and values of `n_sequences` sequences, `kv_length` slots each."""
        return KVCache(
            self._devices, n_sequences, self._n_kv_heads, kv_length, self._head_size, self.dtype
        )

    def __call__(
        self,
        x_RWD: Tensor,
        slots_RW: Tensor,
        mask_R1WC: Tensor,
        cache: KVCache,
        parts: LayerParts = EAGER_PARTS,
    ) -> Tensor:
        """Return the hidden states [R, W, D]; `slots_RW` are cache slots and rotary positions.

        Keys and values are written there. The boolean mask, True where attended, may be shorter
        than the cache: slots beyond it are not attended. `parts` are those of a layer; a decoder
        whose layers are not fused has none.
        """
        cache.slots_RW, cache.n_read = slots_RW, mask_R1WC.shape[-1]
        # Made once here: torch would turn a boolean mask into numbers in every layer.
        bias_R1WC = torch.zeros_like(mask_R1WC, dtype=self.dtype).masked_fill_(
            ~mask_R1WC, -math.inf
        )
        bias_R1WC = bias_R1WC.repeat(1, 1, self._group, 1)
        hidden: Tensor
        if self._is_fused:
            hidden = self._decoder(x_RWD, slots_RW, bias_R1WC, cache, parts)
        else:
            hidden = self._decoder(
                inputs_embeds=x_RWD,
                position_ids=slots_RW,
                attention_mask=bias_R1WC,
                cache=cache,
                use_cache=True,
            ).last_hidden_state
        return hidden


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend in layers of transformers; arguments and result are as transformers has them."""
    return attend(query, key, value, attention_mask, scaling).contiguous(), None


AttentionInterface.register(_ATTENTION, _attention)
