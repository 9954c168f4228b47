"""The shapes and the contracts that the parts of the library share.

Dimension key, the suffix of every tensor whose shape is known; one letter has one meaning:
    B batch slots · W window · X two windows, 2W · V image vocabulary · S image positions ·
    L history depth · K predictions compared · T top-k tokens · A positions kept for the
    initialization `above` · U purposes of noise · G tokens of a GSD group · M nearest tokens of a
    token · E size of a codebook vector · R sequences in the transformer (B, or 2B with guidance:
    conditional ones first) · P prompt tokens · C cache slots · D hidden size · N image tokens of
    one image

The window of slot b starts at image position n_B[b], the first that is not committed. Column w
stands for position n + w: its target distribution is target_probs_BWV[b, w], its draft token
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
    and all that follows the image, are known without decoding.
    """

    rows: int
    columns: int
    vocab_size: int
    row_end: bool = False

    @property
    def stride(self) -> int:
        """Positions from a token to the one below it."""
        return self.columns + self.row_end

    @property
    def length(self) -> int:
        """Positions to decode, S."""
        return self.rows * self.stride - self.row_end

    def forced_at(self, pos_BW: Tensor) -> Tensor:
        """Return which positions are forced, bool [B, W]; positions past the end are not."""
        return (pos_BW % self.stride >= self.columns) & (pos_BW < self.length)

    def image_tokens(self, tokens_S: Tensor) -> Tensor:
        """Return the image tokens alone [rows * columns], forced positions dropped."""
        pos_S = torch.arange(self.length, device=tokens_S.device)
        return tokens_S[~self.forced_at(pos_S)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decides, int64 [B]: the first `accepted_B` draft tokens are accepted.

    `token_B` follows them: a resampled token after a rejection, else the bonus token.
    """

    accepted_B: Tensor
    token_B: Tensor


class Verifier(Protocol):
    """Decides how many draft tokens of a window are accepted. See `sjdvp.decode.verify`.

    Which verifiers are lossless stands in `sjdvp.config.LOSSLESS`, which needs no torch.
    """

    def __call__(
        self,
        target_probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        is_draft_BW: Tensor,
        noise: "Noise",
    ) -> Verdict:
        """Test `draft_BW`, sampled from q `draft_probs_BWV`, against p `target_probs_BWV`.

        Only columns with `is_draft_BW` hold a draft token.
        """


class Drafter(Protocol):
    """Samples draft tokens. See `sjdvp.decode.draft`.

    The distribution it is given is stored as q, so it must sample from exactly that distribution.
    """

    def __call__(
        self,
        probs_BWV: Tensor,
        old_probs_BWV: Tensor,
        old_BW: Tensor,
        has_old_BW: Tensor,
        noise: "Noise",
    ) -> Tensor:
        """Return draft tokens distributed as `probs_BWV`, int64 [B, W].

        Where `has_old_BW`, the position has a draft token `old_BW`, sampled from `old_probs_BWV`,
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
