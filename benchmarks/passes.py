"""How many [B, W, V] tensors a decoding step reads and writes, forward left out; counted as the operations are dispatched."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sjdvp.decode.step import decode_step

_VIEWS = {
    "view",
    "view_as",
    "flatten",
    "expand",
    "expand_as",
    "unsqueeze",
    "squeeze",
    "slice",
    "select",
    "permute",
    "alias",
}


class Passes(TorchDispatchMode):
    """Adds up the elements that operations read and write, in units of `size`."""

    def __init__(self, size):
        super().__init__()
        self.size, self.total = size, 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in _VIEWS:
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            # An expanded tensor is as long as its memory, not as its shape.
            self.total += (
                sum(min(t.numel(), t.untyped_storage().nbytes() / t.itemsize) for t in tensors)
                / self.size
            )
        return out


@torch.inference_mode()
def passes(engine):
    """Return how many times a step goes through W * V values for each row."""
    decoder, state = engine.decoder, engine.state
    logits = torch.randn(engine.batch_size, decoder.window, decoder.layout.vocab_size)
    with Passes(logits.numel()) as counted:
        decode_step(decoder, state, logits)
    return round(counted.total, 1)
