"""Linear layers with weights of 8 or 4 bits, converted to 16 or 32 bits for each product.

Plain torch, so they work on every device and dtype, on the meta device, in CUDA graphs and with
layers distributed over GPUs, and need no package. They save memory, not time: see
docs/experiments.md.

    int8   one scale for each output; the weight is scale * integer
    fp8    the same with float8_e4m3fn
    int4   one scale for 64 inputs of an output; two weights in a byte
    nf4    the same, with the 16 values of QLoRA (arXiv 2305.14314, appendix E)
"""

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from sjdvp.config import Quantization
from sjdvp.errors import ConfigError

_GROUP = 64  # inputs that share a scale, in 4 bits
_BLOCK = 2**20  # weights that are quantized at a time: intermediate results stay small
_FP8 = torch.float8_e4m3fn
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_VALUES = {"int4": tuple((i - 8) / 7 for i in range(16)), "nf4": _NF4}


class QuantizedLinear(nn.Module):
    """y = x W^T + b with a quantized W; `packed` has a row for each output, and so has `scale`."""

    def __init__(
        self, kind: Quantization, packed: Tensor, scale: Tensor, bias: Tensor | None
    ) -> None:
        super().__init__()
        self.kind: Quantization = kind
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @property
    def out_features(self) -> int:
        """The number of outputs."""
        return len(self.packed)

    @property
    def n_weights(self) -> int:
        """The number of weights, bias included."""
        in_a_byte = 2 if self.kind in _VALUES else 1
        return self.packed.numel() * in_a_byte + (0 if self.bias is None else self.bias.numel())

    @classmethod
    def concatenated(cls, layers: "list[QuantizedLinear]") -> "QuantizedLinear":
        """Return one layer whose outputs are those of `layers`, one after the other."""
        packed, scale = (
            torch.cat(tuple(getattr(layer, name) for layer in layers))
            for name in ("packed", "scale")
        )
        biases = tuple(layer.bias for layer in layers if layer.bias is not None)
        return cls(layers[0].kind, packed, scale, torch.cat(biases) if biases else None)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply [..., in] to [..., out]."""
        if self.kind in _VALUES:
            groups = embedding(self.packed.int(), _pairs(self.kind, x.dtype, x.device))
            weight = groups.view(*self.scale.shape, _GROUP) * self.scale[..., None]
            return linear(x, weight.flatten(1), self.bias)
        weight = self.packed.view(_FP8) if self.kind == "fp8" else self.packed
        y = linear(x, weight.to(x.dtype)) * self.scale[:, 0]
        return y if self.bias is None else y + self.bias


def quantize(weight: Tensor, kind: Quantization, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return `packed` and `scale`, in `dtype`, of a weight [out, in]; on the meta device too.

    Raises ConfigError when 4 bits do not fit the number of inputs.
    """
    n_rows = len(weight) if weight.is_meta else max(1, _BLOCK // weight.shape[1])
    blocks = [_quantize_rows(rows.float(), kind, dtype) for rows in weight.split(n_rows)]
    packed, scale = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return packed, scale


def _quantize_rows(weight: Tensor, kind: Quantization, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if kind in _VALUES:
        return _quantize_groups(weight, kind, dtype)
    largest = 127.0 if kind == "int8" else torch.finfo(_FP8).max
    scale = _scale(weight, largest, dtype)
    scaled = (weight / scale.float()).clamp(-largest, largest)
    if kind == "int8":
        return scaled.round().to(torch.int8), scale
    return scaled.to(_FP8).view(torch.uint8), scale


def _quantize_groups(
    weight: Tensor, kind: Quantization, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    n_out, n_in = weight.shape
    if n_in % _GROUP:
        raise ConfigError(
            f"{kind} needs layers with a multiple of {_GROUP} inputs, found {n_in}",
            "quantize this model to int8 or fp8",
            "model.quantize",
        )
    groups = weight.view(n_out, -1, _GROUP)
    scale = _scale(groups, 1.0, dtype)
    values = torch.tensor(_VALUES[kind], device=weight.device)
    between = (values[1:] + values[:-1]) / 2
    index = torch.bucketize(groups / scale.float(), between, out_int32=True).to(torch.uint8)
    first, second = index.view(n_out, -1, 2).unbind(-1)
    return first | second << 4, scale[..., 0]


def _scale(weight: Tensor, largest: float, dtype: torch.dtype) -> Tensor:
    """Return the scales, rounded to `dtype` before anything is divided by them; never 0."""
    scale = (weight.abs().amax(-1, keepdim=True) / largest).to(dtype)
    return scale.clamp(min=torch.finfo(dtype).tiny)


@torch.compiler.assume_constant_result  # else a compiled layer copies it to the GPU at each step
def _pairs(kind: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the two weights of each byte [256, 2]."""
    return _cached_pairs(kind, dtype, device)


@functools.cache
def _cached_pairs(kind: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    values = torch.tensor(_VALUES[kind], dtype=dtype, device=device)
    byte = torch.arange(256, device=device)
    return torch.stack([values[byte & 15], values[byte >> 4]], -1)


def layers_of(network: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the list of a decoder's layers, and its name."""
    return next(
        (name, part) for name, part in network.named_modules() if isinstance(part, nn.ModuleList)
    )


def with_quantized_layers(
    network: nn.Module, kind: Quantization, dtype: torch.dtype
) -> frozenset[str]:
    """Replace the linear layers inside the decoder's layers, in place; return their weights' names.

    On the meta device they have shapes alone.
    """
    stem, layers = layers_of(network)
    names = []
    for name, part in list(layers.named_modules()):
        if isinstance(part, nn.Linear):
            parent, _, child = name.rpartition(".")
            layer = QuantizedLinear(kind, *quantize(part.weight, kind, dtype), part.bias)
            setattr(layers.get_submodule(parent), child, layer)
            names.append(f"{stem}.{name}.weight")
    return frozenset(names)
