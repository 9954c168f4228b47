"""The logits processors of the published loop, in its manner: over the whole vocabulary, and with reads by the host.

They forward_pass at all tokens so far to find out where the image stands, and hold its measures in tensors on the device (the published
loop takes them from generated tokens), so that every comparison of positions is one more read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Vocabulary:
    """The ids that matter: as in the Chameleon family."""

    size: int = 65536
    tokens: range = range(4, 8196)
    image_end: int = 8196
    image_start: int = 8197
    row_end: int = 8803
    end_of_text: int = 8710


class Grammar:
    """Inside a image image tokens alone, a row end after each row, the image end after the last one."""

    def __init__(self, vocabulary: Vocabulary, first: int, rows: int, columns: int):
        """`first` is the place of the image's first code."""
        self.vocabulary, self.first = vocabulary, first
        self.outside_V = torch.ones(vocabulary.size, dtype=torch.bool)
        self.outside_V[vocabulary.tokens.start : vocabulary.tokens.stop] = False
        row = torch.tensor(columns + 1)
        self.forced = ((row, vocabulary.row_end), (row * rows + 1, vocabulary.image_end))

    def __call__(self, ids_1N: Tensor, logits_1WV: Tensor) -> Tensor:
        n_open = count(ids_1N, self.vocabulary.image_start) - count(
            ids_1N, self.vocabulary.image_end
        )
        if n_open == 0:
            return logits_1WV
        if n_open == 1:
            done, width = ids_1N.shape[1] - self.first, logits_1WV.shape[1]
            logits_1WV = torch.where(self.outside_V, -torch.inf, logits_1WV)
            for period, token in self.forced:
                low, high = multiples(done, width, period)
                if low <= high:
                    logits_1WV = logits_1WV.clone()
                    for i in range(low, high + 1):  # two reads
                        place = period * i - (done + 1)
                        logits_1WV[:, place] = -torch.inf
                        logits_1WV[:, place, token] = 0
        return logits_1WV


class TopK:
    """The k highest of the vocabulary, by a sorted top-k; looks for itself whether it is inside a image."""

    def __init__(self, vocabulary: Vocabulary, in_image: int, in_text: int = 10):
        self.vocabulary, self.in_image, self.in_text = vocabulary, in_image, in_text

    def __call__(self, ids_1N: Tensor, logits_1WV: Tensor) -> Tensor:
        inside = (
            count(ids_1N, self.vocabulary.image_start)
            == count(ids_1N, self.vocabulary.image_end) + 1
        )
        kth = logits_1WV.topk(self.in_image if inside else self.in_text, dim=-1).values[..., -1:]
        return logits_1WV.masked_fill(logits_1WV < kth, -torch.inf)


def count(ids_1N: Tensor, token: int) -> Tensor:
    return (ids_1N[0] == token).sum()


def multiples(done: int, width: int, period: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last multiple of `period` among the positions done + 1 .. done + width, counted in periods."""
    first = done + 1
    low = first // period + 1 if first % period != 0 else first // period
    return low, (done + width) // period
