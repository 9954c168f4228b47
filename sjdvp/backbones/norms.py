"""Root-mean-square norms as one kernel of torch's where transformers writes six to eight operations, with the same bits.

On a GPU a decoding step waits for small kernels more than for large ones; a 7B model has 65 of these norms.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import rms_norm


class RmsNorm(nn.Module):
    """x / rms(x) * weight; as in transformers, what is normalised is rounded to the dtype of x before the weights multiply it."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self._epsilon = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return self.weight * rms_norm(x, self.weight.shape, eps=self._epsilon)


def with_fused_norms(part: nn.Module) -> Any:
    """Return `part` with the norms of transformers' Llama, Qwen, Chameleon and Emu3 replaced in place, and what is like them."""
    for name, child in part.named_children():
        # Norms that multiply by 1 + weight (Gemma) call their epsilon by another name.
        like_llama = type(child).__name__.endswith("RMSNorm") and hasattr(child, "variance_epsilon")
        setattr(part, name, RmsNorm(child) if like_llama else with_fused_norms(child))
    return part
