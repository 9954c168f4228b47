"""The shapes and the contracts that the parts of the library share.

Dimension key, the suffix of every tensor whose shape is known; one letter has one meaning:
    B batch slots · W window · X two windows, 2W · V image vocabulary · S image positions ·
    L history depth · H the last L + 1 distributions · K predictions compared · T top-k tokens ·
    A cells for the initialization `above` · U purposes of noise · G tokens of a GSD group ·
    M nearest tokens of a token · E size of a codebook vector · R sequences in the transformer
    (B, or 2B with guidance: conditional ones first) · P prompt tokens · C cache slots ·
    D hidden size · N image tokens of one image · Y numbers that store one distribution: V, or 2Z
    where only Z tokens are listed (see `sjdvp.decode.distributions`)

The window of slot b starts at image position n_B[b], the first that is not committed. Column w
belongs to position n + w: its target distribution is target_probs_BWY[b, w], its draft token
draft_BW[b, w]. The last column is never tested: its distribution gives the bonus token.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sjdvp.rng import Noise


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """An image as a sequence: image tokens in raster order, V of them in the vocabulary.

    With `row_end`, each image row but the last is followed by one forced token. The last row's end,
    and all that follows the image, are known without decoding. A `preview` is a smaller grid of the
    same image, rows and columns, that is decoded first (GLM-Image); it has no row ends.
    """

    rows: int
    columns: int
    vocab_size: int
    row_end: bool = False
    preview: tuple[int, int] = (0, 0)

    @property
    def stride(self) -> int:
        """Positions from a token to the one below it."""
        return self.columns + self.row_end

    @property
    def n_preview(self) -> int:
        """Positions of the preview; the image follows it."""
        return self.preview[0] * self.preview[1]

    @property
    def length(self) -> int:
        """Positions to decode, S."""
        return self.n_preview + self.rows * self.stride - self.row_end

    @property
    def n_cells(self) -> int:
        """Cells, A, that hold the newest distributions as far back as `cell_above` may point."""
        return self.n_preview + self.columns if self.n_preview else self.stride

    def cell(self, pos_BW: Tensor) -> Tensor:
        """Return the cell in which the distribution of a position is kept, int64 [B, W]."""
        return pos_BW % self.n_cells

    def forced_at(self, pos_BW: Tensor) -> Tensor:
        """Return which positions are forced, bool [B, W]; past the end it does not matter."""
        if not self.n_preview:
            return pos_BW % self.stride >= self.columns
        in_image_BW = pos_BW - self.n_preview
        return (in_image_BW % self.stride >= self.columns) & (in_image_BW >= 0)

    def image_tokens(self, tokens_S: Tensor) -> Tensor:
        """Return the image tokens alone [rows * columns], without preview and forced positions."""
        pos_S = torch.arange(self.length, device=tokens_S.device)
        return tokens_S[~self.forced_at(pos_S) & (pos_S >= self.n_preview)]

    def cell_above(self, pos_BW: Tensor, end_B: Tensor) -> Tensor:
        """Return the cell of the nearest position above that lies before `end_B`, int64 [B, W].

        `pos_BW` lie at `end_B` or behind it. Where there is none above, the cell is one that no
        position has used. Above the first row of the image lies the first row of its preview.
        """
        if not self.n_preview:
            return self.cell(pos_BW)  # all positions of a column share a cell
        in_image_BW = pos_BW - self.n_preview
        over_BW = in_image_BW % self.stride * self.preview[1] // self.columns
        over_BW = torch.where(over_BW < end_B[:, None], over_BW, -1)
        up_BW = _above(in_image_BW, end_B - self.n_preview, self.stride)
        up_BW = torch.where(up_BW >= 0, up_BW + self.n_preview, over_BW)
        in_preview_BW = _above(pos_BW, end_B, self.preview[1]).clamp(min=-1)
        return self.cell(torch.where(in_image_BW >= 0, up_BW, in_preview_BW))


def _above(pos_BW: Tensor, end_B: Tensor, stride: int) -> Tensor:
    """Return the last of the positions pos - stride, pos - 2 stride, ... before `end_B`."""
    missing_BW = (pos_BW - end_B[:, None]).clamp(min=0)
    return pos_BW - stride * (1 + missing_BW // stride)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decides, int64 [B]: the first `accepted_B` draft tokens are accepted.

    `token_B` follows them: a resampled token after a rejection, else the bonus token.
    """

    accepted_B: Tensor
    token_B: Tensor


class Verifier(Protocol):
    """Decides how many draft tokens of a window are accepted. See `sjdvp.decode.verify`.

    `sjdvp.config.LOSSLESS` says which verifiers are lossless; it needs no torch.
    """

    def __call__(
        self,
        target_probs_BWY: Tensor,
        draft_probs_BWY: Tensor,
        draft_BW: Tensor,
        noise: "Noise",
        /,
    ) -> Verdict:
        """Test `draft_BW`, sampled from q `draft_probs_BWY`, against p `target_probs_BWY`.

        Every column but the last holds a draft token. The caller cuts what lies past the end.
        """


class Drafter(Protocol):
    """Samples draft tokens. See `sjdvp.decode.draft`.

    The distribution it is given is stored as q, so it must sample from exactly that distribution.
    """

    def __call__(
        self,
        probs_BWY: Tensor,
        old_probs_BWY: Tensor,
        old_BW: Tensor,
        has_old_BW: Tensor,
        noise: "Noise",
        /,
    ) -> Tensor:
        """Return draft tokens distributed as `probs_BWY`, int64 [B, W].

        Where `has_old_BW`, the position has a draft token `old_BW`, sampled from `old_probs_BWY`,
        which may be kept.
        """


@dataclass(frozen=True, slots=True)
class PromptBranch:
    """One branch of a prompt: embeddings at positions 0..P-1, and which may be attended, bool."""

    embeds_PD: Tensor
    visible_P: Tensor


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt ready for prefill.

    `uncond` is the other branch of CFG, with its own length and positions.
    """

    cond: PromptBranch
    uncond: PromptBranch
    n_tokens: int
    truncated: bool
