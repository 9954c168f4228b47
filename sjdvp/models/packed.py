"""Linear layers on a CPU, with their weights laid out once in the order in which oneDNN multiplies them.

`torch.nn.Linear` leaves it to the library to lay out its weights at every call, which takes as long as multiplying them with the
few rows of a window: packed, a product takes half the time with 8 rows, 70 % with 64 and 90 % with 256. These are the operators
that torch.compile puts in the place of linear layers whose weights are frozen.
"""

from typing import Any

import torch
from torch import Tensor, nn

_ROWS = (
    32  # for how many rows the layout is chosen; measured: it is the same, or as fast, for 4 to 256
)


def packed(part: nn.Module) -> Any:
    """Return `part` with its linear layers replaced, wherever they lie on a CPU and oneDNN multiplies their dtype.

    Layers that `part` contains are replaced in place. Weights cannot be read from a packed layer, only counted.
    """
    if isinstance(part, nn.Linear):
        return PackedLinear(part) if _multiplies(part.weight) else part
    for name, child in part.named_children():
        setattr(part, name, packed(child))
    return part


class PackedLinear(nn.Module):
    """y = x W^T + b. From 2 rows on, each row gets the same bits whatever the number of rows (measured; MKL: from 4 on)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Multiply [..., in] to [..., out]."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return y


def _multiplies(weight: Tensor) -> bool:
    """Return whether oneDNN has fast products for such weights on this machine."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
