"""What one forward shows of the positions in the window: from the distributions they have had to sums, one line a row [B, ...].

A forward_pass is one distribution of one position. Its life runs from its first forward_pass, when it enters the window, to its last, when it is committed.
Dimension key as in `sjdvp.interfaces`, and H looks back, N rises in a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sjdvp.decode.prediction import rising
from sjdvp.sampling import probability_of, total_variation

MOST_RISES = 4  # rises in a row are counted up to this many


@dataclass(frozen=True, slots=True)
class Looks:
    """The newest forward_pass at every column of the window, and those before it at the same positions."""

    target_probs_BWV: Tensor
    past_BHWV: Tensor  # the looks before, newest first
    first_BWV: Tensor
    age_BW: Tensor  # how many looks there were before, whether or not all are kept
    counts_BW: Tensor  # bool: looked at before, in a image under way, and not forced


def growth(
    looks: Looks, token_BW: Tensor, committed_BW: Tensor, accepted_BW: Tensor
) -> dict[str, Tensor]:
    """Count committed tokens whose probability had grown: over their life, and at each of the last 1, 2, ... looks.

    The last forward_pass is counted apart for tokens committed as a draft that stood, and for those drawn in place of a draft.
    """
    seen_BW = committed_BW & looks.counts_BW
    now_BW = probability_of(looks.target_probs_BWV, token_BW)
    steps = min(MOST_RISES, looks.past_BHWV.shape[1])
    before_BHW = torch.stack(
        [probability_of(looks.past_BHWV[:, h], token_BW) for h in range(steps)], 1
    )
    newer_BHW = torch.cat([now_BW[:, None], before_BHW[:, :-1]], 1)
    old_enough_BHW = looks.age_BW[:, None] > torch.arange(steps, device=now_BW.device)[:, None]
    in_a_row_BHW = (newer_BHW > before_BHW).long().cumprod(1).bool() & old_enough_BHW
    rose_BW = in_a_row_BHW[:, 0]
    return {
        "committed": seen_BW.sum(-1),
        "grew_life": (seen_BW & (now_BW > probability_of(looks.first_BWV, token_BW))).sum(-1),
        "could_grow_N": (seen_BW[:, None] & old_enough_BHW).sum(-1),
        "grew_N": (seen_BW[:, None] & in_a_row_BHW).sum(-1),
        "stood": (seen_BW & accepted_BW).sum(-1),
        "stood_grew": (seen_BW & accepted_BW & rose_BW).sum(-1),
        "drawn_grew": (seen_BW & ~accepted_BW & rose_BW).sum(-1),
    }


def rises(looks: Looks, top_k: int) -> dict[str, Tensor]:
    """Count the top tokens of the last forward_pass that had risen 0, 1, ... times in a row by then, and which of them rose at this forward_pass.

    `mass` counts each code by its probability at the last forward_pass.
    """
    last_BWT, top_BWT, older_BHWT = _at_the_top(looks, top_k)
    again_BWT = looks.target_probs_BWV.gather(-1, top_BWT) > last_BWT
    had: list[Tensor] = [looks.counts_BW[..., None].expand_as(again_BWT)]
    for n in range(1, min(MOST_RISES, older_BHWT.shape[1]) + 1):
        had.append(had[0] & rising(last_BWT, older_BHWT, looks.age_BW - 1, n))
    had_BNWT = torch.stack(had, 1)
    rose_BNWT = had_BNWT & again_BWT[:, None]
    return {
        "rises_N": had_BNWT.sum((-1, -2)),
        "rises_again_N": rose_BNWT.sum((-1, -2)),
        "rises_mass_N": (had_BNWT * last_BWT[:, None]).sum((-1, -2)),
        "rises_again_mass_N": (rose_BNWT * last_BWT[:, None]).sum((-1, -2)),
    }


def distances(
    looks: Looks,
    candidates: Callable[[Tensor, Tensor, Tensor], Tensor],
    top_k: int,
    committed_BW: Tensor,
) -> dict[str, Tensor]:
    """Sum the total variation between this forward_pass and each candidate distribution made from the looks before it.

    One less it is the chance that a draft from the candidate would stand. Sums are by column, and over committed positions.
    """
    last_BWT, top_BWT, older_BHWT = _at_the_top(looks, top_k)
    target_probs_BWT = looks.target_probs_BWV.gather(-1, top_BWT)
    guess_BKWT = candidates(last_BWT, older_BHWT, looks.age_BW - 1)
    # Below the top tokens every candidate is the last forward_pass itself.
    below_BW = total_variation(looks.past_BHWV[:, 0], looks.target_probs_BWV) - total_variation(
        last_BWT, target_probs_BWT
    )
    apart_BKW = total_variation(guess_BKWT, target_probs_BWT[:, None]) + below_BW[:, None]
    return {
        "looked_W": looks.counts_BW.long(),
        "apart_KW": apart_BKW.where(looks.counts_BW[:, None], 0.0),
        "apart_committed_K": apart_BKW.where((looks.counts_BW & committed_BW)[:, None], 0.0).sum(
            -1
        ),
    }


def _at_the_top(looks: Looks, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the most probable tokens of the last forward_pass: their probabilities, which they are, and what they had been before."""
    last_BWV = looks.past_BHWV[:, 0]
    vocab_size = last_BWV.shape[-1]
    last_BWT, top_BWT = last_BWV.topk(min(top_k or vocab_size, vocab_size), dim=-1)
    older_BHWV = looks.past_BHWV[:, 1:]
    return (
        last_BWT,
        top_BWT,
        older_BHWV.gather(-1, top_BWT[:, None].expand(-1, older_BHWV.shape[1], -1, -1)),
    )


def tests(
    draft_probs_BWV: Tensor,
    target_probs_BWV: Tensor,
    is_draft_BW: Tensor,
    tested_BW: Tensor,
    accepted_BW: Tensor,
) -> dict[str, Tensor]:
    """Count drafts tested and accepted by their column, and sum the overlap of stored distribution and new distribution over all drafts there are."""
    return {
        "tested_W": tested_BW.long(),
        "accepted_W": accepted_BW.long(),
        "drafts_W": is_draft_BW.long(),
        "overlap_W": (1 - total_variation(draft_probs_BWV, target_probs_BWV)).where(
            is_draft_BW, 0.0
        ),
    }


def fidelity(target_probs_BWV: Tensor, token_BW: Tensor, committed_BW: Tensor) -> dict[str, Tensor]:
    """Sum the log-likelihood of committed tokens under the model, and the entropy of the distributions they came from (nats).

    At a committed position all tokens before it are committed too, so the distribution of this very forward is the model's own.
    """
    log_p_BWV = target_probs_BWV.clamp(min=torch.finfo(target_probs_BWV.dtype).tiny).log()
    return {
        "tokens": committed_BW.sum(-1),
        "log_likelihood": probability_of(log_p_BWV, token_BW).where(committed_BW, 0.0).sum(-1),
        "entropy": -(target_probs_BWV * log_p_BWV).sum(-1).where(committed_BW, 0.0).sum(-1),
    }
