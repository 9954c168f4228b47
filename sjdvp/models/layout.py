"""The geometry of an image as a sequence: raster order, with or without a forced token at the end of each row."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grid:
    """Image tokens in raster order. With `row_end`, each row but the last is followed by one forced token.

    The last row's end, and all that follows the image, are known without decoding.
    """

    rows: int
    columns: int
    row_end: bool = False

    @property
    def stride(self) -> int:
        """Positions from a code to the one below it."""
        return self.columns + self.row_end

    @property
    def length(self) -> int:
        """Positions to decode, S."""
        return self.rows * self.stride - self.row_end

    def forced_S(self) -> Tensor:
        """Return which positions are forced [S]."""
        column_S = torch.arange(self.length) % self.stride
        return column_S >= self.columns

    def image_tokens(self, tokens_S: Tensor) -> Tensor:
        """Return the image tokens alone [rows * columns], forced positions dropped."""
        return tokens_S[~self.forced_S().to(tokens_S.device)]
