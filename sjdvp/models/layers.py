"""The parts of a decoder layer, with fewer and larger operations than transformers writes.

On a GPU a step waits for small kernels more than for large ones: transformers' layers launch 29 to
36 kernels each, these 17 to 19. On a CPU linear layers are packed once instead of at every call.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, pad, rms_norm, scaled_dot_product_attention

from sjdvp.models.quantize import QuantizedLinear

_ROWS = 32  # rows the packed layout is made for; measured: as fast as any for 4 to 256 rows
_HEAD_UNIT = 8  # 16 bytes of a 16-bit type
# Norms whose weight is the factor, in transformers' names; Gemma's weight is the factor minus 1.
_RMS_NORMS = {
    f"{name}RMSNorm"
    for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Chameleon", "Emu3", "GlmImage")
}
_GEMMA_NORM = "GemmaRMSNorm"
# Attention of the plain kind: four projections, rotary embeddings over whole heads, and maybe norms
# of queries and keys.
_ATTENTIONS = {
    f"{name}Attention"
    for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Chameleon", "Emu3", "Gemma")
}


def fused(decoder: Any, rotary: nn.Module) -> Any:
    """Return a transformers decoder with its layers fused, and the given one emptied.

    Layer by layer, so that no weight is twice in memory. `rotary` gives cos and sin [R, W, head
    size]. A decoder with attention of another kind keeps its layers, with the attention function of
    `sjdvp.models.transformer`.
    """
    if all(type(layer.self_attn).__name__ in _ATTENTIONS for layer in decoder.layers):
        for index, layer in enumerate(decoder.layers):
            decoder.layers[index] = packed(FusedLayer(layer))
        return FusedDecoder(decoder, rotary)
    decoder.rotary_emb = rotary
    return packed(with_fused_norms(decoder))


class FusedDecoder(nn.Module):
    """Fused layers one after the other, and the last norm."""

    def __init__(self, decoder: Any, rotary: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = decoder.get_input_embeddings()  # not used here, but one of the weights
        self.layers, self.norm = decoder.layers, with_fused_norms(decoder.norm)
        self.rotary = SignedRotary(rotary, self.layers[0].attention.head_size)

    def get_input_embeddings(self) -> Any:
        """Return the table of token embeddings, as transformers' decoders do."""
        return self.embed_tokens

    def forward(
        self,
        x: Tensor,
        slots_RW: Tensor,
        bias: Tensor,
        cache: Any,
        parts: "LayerParts",
    ) -> Tensor:
        """Return the hidden states [R, W, D] of the input embeddings; see `Transformer`."""
        angles = self.rotary(x, slots_RW)
        for layer in self.layers:
            x = layer(x, *angles, bias, cache=cache, parts=parts)
        x = self.norm(x)
        return x


class FusedLayer(nn.Module):
    """One decoder layer: what precedes attention, attention over the cache, what follows it."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.attention, self.mlp = FusedAttention(layer.self_attn), FusedMlp(layer.mlp)
        self.attention_norm = with_fused_norms(layer.input_layernorm)
        self.mlp_norm = with_fused_norms(layer.post_attention_layernorm)
        # Chameleon 30B normalises what attention and MLP return, not what they take.
        self.norm_last = type(layer).__name__ == "ChameleonSwinDecoderLayer"
        self._index, self._scale = layer.self_attn.layer_idx, layer.self_attn.scaling

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, *, cache: Any, parts: "LayerParts"
    ) -> Tensor:
        """Transform [R, W, hidden size] under a bias [R, 1, W * group, C] of the scores."""
        q, k, v = parts.before(self, x, cos, sin)
        keys, values = cache.update(k, v, self._index)
        return parts.after(self, x, attend(q, keys, values, bias, self._scale))


def before_attention(
    layer: FusedLayer, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values [R, heads, W, head size] of the input of a layer."""
    return layer.attention.project(x if layer.norm_last else layer.attention_norm(x), cos, sin)


def after_attention(layer: FusedLayer, x: Tensor, out: Tensor) -> Tensor:
    """Return the output of a layer from its input and what attention gave."""
    out = layer.attention.out(out.flatten(2))
    if layer.norm_last:
        x = x + layer.attention_norm(out)
        return x + layer.mlp_norm(layer.mlp(x))
    x = x + out
    y: Tensor = x + layer.mlp(layer.mlp_norm(x))
    return y


class LayerParts(NamedTuple):
    """The two parts of a layer around attention, as functions of the layer.

    All layers share them, and neither knows the length of the cache: compiled, each is compiled
    once for a model.
    """

    before: Callable[..., tuple[Tensor, Tensor, Tensor]]
    after: Callable[..., Tensor]


EAGER_PARTS = LayerParts(before_attention, after_attention)


class RmsNorm(nn.Module):
    """x / rms(x) * weight, computed in float32 and rounded once; one kernel on a GPU."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self._epsilon = nn.Parameter(weight, requires_grad=False), epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension; the weight may have a wider dtype than x."""
        weight = self.weight
        return rms_norm(x.to(weight.dtype), weight.shape, weight, self._epsilon).to(x.dtype)


def with_fused_norms(part: nn.Module) -> Any:
    """Return `part` with all norms of known kinds replaced in place."""
    kind: Any = part
    if type(part).__name__ in _RMS_NORMS:
        return RmsNorm(kind.weight.detach(), kind.variance_epsilon)
    if type(part).__name__ == _GEMMA_NORM:  # 1 + weight would lose bits in 16
        return RmsNorm(1 + kind.weight.detach().float(), kind.eps)
    for name, child in part.named_children():
        setattr(part, name, with_fused_norms(child))
    return part


class HeadNorm(nn.Module):
    """The norms of queries and keys, whose heads lie side by side [R, W, heads, head size], in one.

    Each head has its own weight: Chameleon's layer norms also have a bias, Qwen3's RMS norms not.
    """

    def __init__(self, q_norm: Any, n_q: int, k_norm: Any, n_kv: int) -> None:
        super().__init__()
        self.weight = _rows(q_norm.weight, n_q, k_norm.weight, n_kv)
        bias = getattr(q_norm, "bias", None)
        self.bias = None if bias is None else _rows(bias, n_q, k_norm.bias, n_kv)
        self._epsilon = q_norm.eps if self.bias is not None else q_norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each head."""
        size = x.shape[-1:]
        if self.bias is None:
            return rms_norm(x, size, eps=self._epsilon) * self.weight
        return torch.addcmul(self.bias, layer_norm(x, size, eps=self._epsilon), self.weight)


def _rows(q: Tensor, n_q: int, k: Tensor, n_kv: int) -> nn.Parameter:
    """Return weights [D] or [heads, D] of queries and keys as one row for each head."""
    rows = [weight.detach().expand(n, -1) for weight, n in ((q, n_q), (k, n_kv))]
    return nn.Parameter(torch.cat(rows), requires_grad=False)


class FusedAttention(nn.Module):
    """What attention multiplies with: one product for queries, keys and values, one for its output.

    Heads whose size is not a multiple of 8 get zeros: else torch's fused kernels on GPUs refuse
    16-bit types (`check_head_dim_size_mem_efficient` in ATen's sdp_utils.cpp) and attention falls
    to the slowest, which writes all scores to memory (LlamaGen 3B: heads of 100).
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        size: int = attention.head_dim
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        self._n_q, self._n_kv, _ = (linear.out_features // size for linear in projections)
        has_norm = getattr(attention, "q_norm", None) is not None
        as_it_is = has_norm or isinstance(attention.q_proj, QuantizedLinear)
        self.head_size = size if as_it_is else -(-size // _HEAD_UNIT) * _HEAD_UNIT
        self.qkv = concatenated([_wider_out(p, size, self.head_size) for p in projections])
        self.out = _wider_in(attention.o_proj, size, self.head_size)
        self.norm = (
            HeadNorm(attention.q_norm, self._n_q, attention.k_norm, self._n_kv)
            if has_norm
            else None
        )

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [R, heads, W, head size] of [R, W, hidden size]."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_size))
        qk, v = heads.split([self._n_q + self._n_kv, self._n_kv], 2)
        if self.norm is not None:
            qk = self.norm(qk)
        q, k = rotate(qk, cos, sin).transpose(1, 2).split([self._n_q, self._n_kv], 1)
        return q, k, v.transpose(1, 2)


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Attend under a bias that is added to the scores; return [R, W, heads, head size].

    Queries are [R, heads, W, head size], keys and values [R, key heads, C, head size]. Query heads
    that share a key head lie one after the other in the window, so that keys are never repeated;
    the bias is [R, 1, W * heads / key heads, C].
    """
    # What torch chooses on a GPU (ATen's native/transformers/cuda/sdp_utils.cpp and attention.cpp):
    # flash attention refuses every mask; cuDNN's takes one and comes first on sm_90 and sm_100, but
    # `Transformer` turns it off; memory-efficient attention is next, math last. Memory-efficient
    # attention refuses `enable_gqa` and 16-bit heads that are not a multiple of 8, copies a bias
    # whose rows are not, and reads keys by their strides: the cache need not be transposed.
    n_sequences, n_heads, window, size = q.shape
    q = q.reshape(n_sequences, keys.shape[1], -1, size)
    out = scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=scale)
    return out.reshape(n_sequences, n_heads, window, size).transpose(1, 2)


class SignedRotary(nn.Module):
    """cos and sin of the rotary angles [R, W, 1, head size], sin signed as `rotate` needs it."""

    def __init__(self, rotary: nn.Module, head_size: int) -> None:
        super().__init__()
        self.rotary, self._head_size = rotary, head_size

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Compute them in the dtype of x."""
        cos, sin = self.rotary(x, position_ids=position_ids)
        first, second = sin.chunk(2, -1)
        signed = torch.cat([-first, second], -1)
        cos, signed = (_wider(part, -1, part.shape[-1], self._head_size) for part in (cos, signed))
        return cos[:, :, None], signed[:, :, None]


class TableRotary(nn.Module):
    """cos and sin [C, head size] of the rotary angles by cache slot, as a table."""

    cos: Tensor
    sin: Tensor

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        super().__init__()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [R, W, head size] in the dtype of x; past the image, any."""
        index = position_ids.clamp(max=len(self.cos) - 1)
        return self.cos[index].to(x.dtype), self.sin[index].to(x.dtype)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate the pairs (j, j + head size / 2) of all heads [R, W, heads, head size]."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


class FusedMlp(nn.Module):
    """down(act(gate(x)) * up(x)) with one product for gate and up."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up = concatenated([mlp.gate_proj, mlp.up_proj])
        self.down, self._act = mlp.down_proj, mlp.act_fn

    def forward(self, x: Tensor) -> Tensor:
        """Transform [..., hidden size]."""
        gate, up = self.gate_up(x).chunk(2, -1)
        down: Tensor = self.down(self._act(gate) * up)
        return down


def concatenated(linears: list[Any]) -> Any:
    """Return one linear layer whose outputs are those of `linears`, one after the other."""
    if isinstance(linears[0], QuantizedLinear):
        return QuantizedLinear.concatenated(linears)
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return _linear(torch.cat([linear.weight for linear in linears]), bias)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    n_out, n_in = weight.shape
    with torch.device("meta"):
        linear = nn.Linear(n_in, n_out, bias=bias is not None)
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear


def _wider(tensor: Tensor, dim: int, size: int, wider: int) -> Tensor:
    """Pad each head along `dim` with zeros, in both halves: rotary pairs stay half a head apart."""
    if size == wider:
        return tensor
    halves = tensor.unflatten(dim, (-1, size // 2)).movedim(dim, -1)
    return pad(halves, (0, (wider - size) // 2)).movedim(-1, dim).flatten(dim - 1, dim)


def _wider_out(linear: nn.Linear, size: int, wider: int) -> nn.Linear:
    bias = None if linear.bias is None else _wider(linear.bias, -1, size, wider)
    return _linear(_wider(linear.weight, -2, size, wider), bias) if size != wider else linear


def _wider_in(linear: nn.Linear, size: int, wider: int) -> nn.Linear:
    return _linear(_wider(linear.weight, -1, size, wider), linear.bias) if size != wider else linear


def half_split(weight: Tensor, n_heads: int) -> Tensor:
    """Reorder the rotary pairs of a query or key weight [heads * head size, ...].

    Meta and LlamaGen store a pair side by side (2j, 2j + 1); transformers and `rotate` want it half
    a head apart (j, j + head size / 2).
    """
    pairs = weight.reshape(n_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def packed(part: nn.Module) -> Any:
    """Return `part` with its linear layers packed, where they lie on a CPU and oneDNN takes them.

    Layers that `part` contains are replaced in place. A packed weight can be counted, not read.
    """
    if isinstance(part, nn.Linear):
        return PackedLinear(part) if _can_pack(part.weight) else part
    for name, child in part.named_children():
        setattr(part, name, packed(child))
    return part


class PackedLinear(nn.Module):
    """y = x W^T + b with weights in oneDNN's layout, by the operators of torch.compile's freezing.

    `torch.nn.Linear` lets the library lay out the weights at every call, which takes as long as
    multiplying them with the few rows of a window: packed, a product takes half the time with 8
    rows, 70 % with 64 and 90 % with 256. From 2 rows on, each row gets the same bits whatever the
    number of rows (measured; MKL: from 4 on).
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Multiply [..., in] to [..., out]."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return y


def _can_pack(weight: Tensor) -> bool:
    """Return whether oneDNN has fast products for such weights on this machine."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
