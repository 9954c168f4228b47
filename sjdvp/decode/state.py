"""What every batch slot remembers between two iterations, and gathers along the window.

All tensors keep their shape for the life of an engine.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(slots=True)
class State:
    """The state of B slots. A slot with n_B == S is idle: it commits nothing and may be refilled.

    Probabilities are stored in float32 (float64 for a float64 model), counts and tokens in int64.
    A distribution is stored as Y numbers, see `sjdvp.decode.distributions`.
    """

    key_B: Tensor  # key of the slot's noise, made from the image seed
    position_key_BS: Tensor  # the same of each position; 2W more: the next window may reach there
    n_B: Tensor  # positions committed
    nfe_B: Tensor  # iterations so far (prefill not counted); of an idle slot without meaning
    tokens_BS: Tensor  # committed tokens; W more, so that a whole window can be written anywhere
    accept_map_BS: Tensor  # bool: the token was accepted, not resampled and no bonus; W more
    draft_BW: Tensor
    draft_probs_BWY: Tensor  # q: the distribution each draft token was sampled from
    history_BWLY: Tensor  # the last L target distributions of each position, newest first
    age_BW: Tensor  # how many it has had
    top_BWT: Tensor  # the T most probable tokens of the newest distribution
    predicted_BKWT: Tensor  # the K predicted distributions at these tokens
    error_BK: Tensor  # running distance between each prediction and what came
    recent_BAY: Tensor  # newest target distribution in each cell of the layout; at first uniform
    bad_B: Tensor  # bool: its logits could not be sampled from

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in a fixed order."""
        return [getattr(self, field.name) for field in fields(self)]

    def reset(self, slots_B: Tensor, key_B: Tensor) -> None:
        """Clear `slots_B` in place for new images with these keys; nothing of the old remains."""
        for tensor in self.tensors():
            tensor.index_fill_(0, slots_B, 0)
        self.key_B[slots_B] = key_B


def columns(width: int, device: torch.device) -> Tensor:
    """Return 0..width-1, int64 [width]."""
    return torch.arange(width, device=device)


def take(t_BW: Tensor, column_B: Tensor) -> Tensor:
    """Return column column_B[b] of each sequence: [B, W, ...] -> [B, ...]."""
    index = column_B.view(-1, *[1] * (t_BW.dim() - 1)).expand(-1, 1, *t_BW.shape[2:])
    return t_BW.gather(1, index).squeeze(1)
