"""The shapes and the contracts that the rooms share.

Dimension key (suffix of every tensor whose shape is known):
    B rows (images in flight) · W window · X two windows, 2W · V image tokens · T the most probable · S image positions ·
    L past distributions · K candidates · R rows of the transformer (B, or 2B with guidance: conditional rows first) · P prompt tokens ·
    C cache slots · D hidden size

A window of row b starts at image position n_B[b], the first that is not committed. Column w stands for position n + w: its distribution is
target_probs_BWV[b, w], its draft draft_BW[b, w]. The last column is never drafted: its distribution gives the bonus draw.
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
    """What a verifier decides: the first `accepted_B` drafts stand, and `token_B` follows them (resample or bonus)."""

    accepted_B: Tensor
    token_B: Tensor


class Verifier(Protocol):
    """Decides how many drafts of a window stand."""

    lossless: bool  # whether the committed tokens follow exactly the model's distribution; printed wherever a speed is

    def __call__(
        self,
        target_probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        live_BW: Tensor,
        noise: "Noise",
    ) -> Verdict:
        """Test `draft_BW`, drawn from the stored distributions `draft_probs_BWV`, against the target distributions `target_probs_BWV`; only live columns hold drafts."""


class Drafter(Protocol):
    """Draws the next drafts. The distribution it is given is stored beside the draft, so it must draw from exactly that distribution."""

    def __call__(
        self,
        probs_BWV: Tensor,
        draft_probs_BWV: Tensor,
        draft_BW: Tensor,
        live_BW: Tensor,
        noise: "Noise",
    ) -> Tensor:
        """Return drafts [B, W] distributed as `probs_BWV`; it may reuse `draft_BW`, drawn from `draft_probs_BWV`, in live columns."""


class Predictor(Protocol):
    """Verification prediction: from the distributions a position has seen to the distributions its next draft may be drawn from."""

    @property
    def history_length(self) -> int:
        """How many past distributions it looks at, L."""

    @property
    def n_predictions(self) -> int:
        """How many distributions it offers, K; 0 for no prediction at all."""

    def __call__(self, target_probs_BWT: Tensor, history_BLWT: Tensor, age_BW: Tensor) -> Tensor:
        """Return candidate distributions [B, K, W, T], each with the mass of `target_probs_BWT`; `age_BW` says how many of the L past distributions exist."""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One branch of a prompt: embeddings [P, D] at positions 0..P-1, and which of them may be attended [P]."""

    embeds_PD: Tensor
    visible_P: Tensor


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready for prefill; `uncond` is the other branch of guidance, with a length and positions of its own."""

    cond: PromptRow
    uncond: PromptRow
    n_tokens: int
    truncated: bool
