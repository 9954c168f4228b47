"""The one place that touches transformers' internals: a decoder-only transformer stepped with our own positions, mask and cache.

Works with any transformers 5.24 decoder whose forward takes `inputs_embeds`, `position_ids` [R, W], a mask [R, 1, W, C] of numbers
that are added, and `cache`: Llama, Qwen, Chameleon, Emu3 (models.md section 10). The attention is ours.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sjdvp.kv_cache import KVCache
from sjdvp.models import attention
from sjdvp.models.device_map import compute_there
from sjdvp.models.norms import with_fused_norms
from sjdvp.models.packed import packed


class Transformer:
    """A transformers decoder, from embeddings to the hidden states after its last norm."""

    def __init__(self, decoder: PreTrainedModel, rotary: nn.Module | None = None) -> None:
        """Take a decoder with its weights in place; `rotary` replaces its rotary embedding.

        A decoder's own rotary embedding is computed anew: it is no weight, so loading on the meta device leaves it there. Layers
        may lie on several devices (see `sjdvp.models.device_map`): what goes in and comes out is on the device of the embeddings.
        """
        config: Any = decoder.config
        decoder.set_attn_implementation(attention.NAME)
        self._decoder: Any = packed(with_fused_norms(decoder.eval().requires_grad_(False)))
        self._n_heads = config.num_key_value_heads
        self._head_size = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        example = next(decoder.parameters())
        self.device, self.dtype = example.device, example.dtype
        self._devices = [next(layer.parameters()).device for layer in self._decoder.layers]
        if set(self._devices) != {self.device}:
            for part, device in [
                *zip(self._decoder.layers, self._devices, strict=True),
                (self._decoder.norm, self.device),
            ]:
                compute_there(part, device)
        self._decoder.rotary_emb = (rotary or type(self._decoder.rotary_emb)(config)).to(
            self.device
        )

    @property
    def n_weights(self) -> int:
        """Weights that every forward reads; the table of token embeddings is not among them."""
        table = self._decoder.get_input_embeddings().weight
        return sum(weight.numel() for weight in self._decoder.parameters() if weight is not table)

    @property
    def n_bytes(self) -> int:
        """Bytes of all its weights."""
        return sum(weight.nbytes for weight in self._decoder.parameters())

    def new_cache(self, n_sequences: int, kv_length: int) -> KVCache:
        """Allocate keys and values for `n_sequences` rows of `kv_length` slots."""
        return KVCache(
            self._devices, n_sequences, self._n_heads, kv_length, self._head_size, self.dtype
        )

    def __call__(
        self, x_RWD: Tensor, slots_RW: Tensor, mask_R1WC: Tensor, cache: KVCache
    ) -> Tensor:
        """Return the hidden states [R, W, D]; keys and values are written at `slots_RW`, which are also the rotary positions.

        The boolean mask may be shorter than the cache: the slots beyond it are not looked at.
        """
        cache.slots_RW, cache.n_read = slots_RW, mask_R1WC.shape[-1]
        # Torch's attention would turn a boolean mask into numbers itself, in every layer anew.
        bias_R1WC = torch.zeros_like(mask_R1WC, dtype=self.dtype).masked_fill_(
            ~mask_R1WC, -math.inf
        )
        output = self._decoder(
            inputs_embeds=x_RWD,
            position_ids=slots_RW,
            attention_mask=bias_R1WC,
            cache=cache,
            use_cache=True,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden
