"""The state of decoding: what every row remembers between two forward passes. All tensors keep their shape for the life of an engine."""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from sjdvp.interfaces import ImageLayout


class Tally(IntEnum):
    """Columns of `tally_BT`: sums over a row's steps, read once when the image is done."""

    DRAFTED = 0  # drafts tested (up to and with the first rejection)
    ACCEPTED = 1
    LOOKED = 2  # committed tokens that had been looked at before
    GREW = 3  # ... whose probability had risen at the last forward_pass
    TV_PLAIN = 4  # sum over those positions of the total variation between the last distribution and this one
    TV_PREDICTED = 5  # ... between the stored draft distribution and this one
    ROSE = 6  # tokens among the top-k that had risen N times in a row, counted at the positions looked at
    ROSE_AGAIN = 7  # ... and rose once more


@dataclass(slots=True)
class State:
    """Everything a row remembers. A row with n_B == S is idle: it commits nothing and may be admitted anew."""

    key_B: Tensor  # int64, of the image seed
    n_B: Tensor  # positions committed
    step_B: Tensor  # decode forward passes done (NFE)
    tokens_BS: (
        Tensor  # committed tokens, padded by W so that a whole window can be written at any place
    )
    stood_BS: Tensor  # 1 where the code was committed as a draft that stood, 0 where it was a resample or bonus draw
    draft_BW: Tensor
    draft_probs_BWV: Tensor  # the distribution each draft was drawn from
    history_BLWV: Tensor  # the last distributions of each position, newest first (L = 0 without verification prediction)
    age_BW: Tensor  # how many of them exist
    top_BWT: Tensor  # the most probable tokens of each position's last distribution (T = 0 without verification prediction)
    rose_BWT: Tensor  # bool: which of them had risen N times in a row
    guess_BKWT: Tensor  # candidate distributions of the last step, over those tokens; elsewhere all are the last distribution
    score_BK: Tensor  # running total variation of each candidate to the distribution that came next
    trail_BRV: Tensor  # newest distribution of position i at i mod R (R = 0 unless the fresh rule looks one row up)
    tally_BT: Tensor
    commits_BN: Tensor  # how many steps committed 0, 1, ..., W tokens
    bad_B: Tensor  # bool: a logit was not finite

    @classmethod
    def idle(
        cls, batch_size: int, window: int, layout: ImageLayout, *, history_length: int, n_predictions: int, n_top: int, n_trail: int,
        dtype: torch.dtype, device: torch.device,
    ) -> "State":  # fmt: skip
        """Allocate a state of `batch_size` idle rows; distributions are stored in `dtype`."""

        def distribution(*shape: int) -> Tensor:
            return torch.zeros(batch_size, *shape, layout.vocab_size, dtype=dtype, device=device)

        def whole(*shape: int) -> Tensor:
            return torch.zeros(batch_size, *shape, dtype=torch.int64, device=device)

        return cls(
            key_B=whole(),
            n_B=whole() + layout.length,
            step_B=whole(),
            tokens_BS=whole(layout.length + window),
            stood_BS=whole(layout.length + window),
            draft_BW=whole(window),
            draft_probs_BWV=distribution(window),
            history_BLWV=distribution(history_length, window),
            age_BW=whole(window),
            top_BWT=whole(window, n_top),
            rose_BWT=torch.zeros(batch_size, window, n_top, dtype=torch.bool, device=device),
            guess_BKWT=torch.zeros(
                batch_size, n_predictions, window, n_top, dtype=dtype, device=device
            ),
            score_BK=torch.zeros(batch_size, n_predictions, dtype=dtype, device=device),
            trail_BRV=distribution(n_trail),
            tally_BT=torch.zeros(batch_size, len(Tally), dtype=torch.float64, device=device),
            commits_BN=whole(window + 1),
            bad_B=torch.zeros(batch_size, dtype=torch.bool, device=device),
        )

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in a fixed order."""
        return [getattr(self, name) for name in self.__slots__]

    def reset(self, rows: list[int], key_B: Tensor) -> None:
        """Clear `rows` in place for new images with the given keys; what the old images left behind cannot be seen again."""
        for tensor in self.tensors():
            tensor[rows] = 0
        self.key_B[rows] = key_B


def columns(window: int, device: torch.device) -> Tensor:
    """Return 0..W-1."""
    return torch.arange(window, device=device)


def take(t_BW: Tensor, col_B: Tensor) -> Tensor:
    """Return column col_B[b] of each row: [B, W, ...] -> [B, ...]."""
    index = col_B.view(-1, *[1] * (t_BW.dim() - 1)).expand(-1, 1, *t_BW.shape[2:])
    return t_BW.gather(1, index).squeeze(1)


def sources(window: int, by_B: Tensor) -> Tensor:
    """Return which column becomes column w when each row's window moves forward by by_B[b]; past the end, the last [B, W]."""
    return (columns(window, by_B.device) + by_B[:, None]).clamp(max=window - 1)


def pick(t: Tensor, index_BN: Tensor, dim: int = 1) -> Tensor:
    """Return the entries index_BN[b] of `dim`, which becomes N long: [B, R, ...] -> [B, N, ...].

    Whole distributions are copied. A gather, whose index is as large as its result, takes ten times as long on a CPU.
    """
    before, length, after = t.shape[:dim], t.shape[dim], t.shape[dim + 1 :]
    start = (torch.arange(before.numel(), device=t.device) * length).view(*before, 1)
    line = start + index_BN.view(before[0], *[1] * (dim - 1), -1)
    return (
        t.flatten(0, dim).index_select(0, line.flatten()).view(*before, index_BN.shape[1], *after)
    )
