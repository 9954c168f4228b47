"""What one iteration shows of the positions in the window, as sums per slot [B, ...].

A position is seen once per iteration, from the one in which it enters the window to the one in
which it is committed. Dimension key as in `sjdvp.interfaces`, and H earlier iterations, N rises in
a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sjdvp.analysis.metrics import BETAS, MOMENTA
from sjdvp.config import PredictionConfig
from sjdvp.decode.prediction import Trend, momentum, published, rising, scaled
from sjdvp.sampling import probability_of, total_variation

MOST_RISES = 4  # rises in a row are counted up to this many


@dataclass(frozen=True, slots=True)
class WindowHistory:
    """The newest target distribution at each window position, and the earlier ones there."""

    target_probs_BWV: Tensor
    past_BHWV: Tensor  # of the earlier iterations, newest first
    first_BWV: Tensor  # of the iteration in which the position entered the window
    age_BW: Tensor  # number of earlier iterations, whether or not all are kept
    counts_BW: Tensor  # bool: seen before, in an image in progress, and not forced


def growth(
    seen: WindowHistory, token_BW: Tensor, committed_BW: Tensor, accepted_BW: Tensor
) -> dict[str, Tensor]:
    """Count committed tokens whose probability had grown.

    Over the time in the window, and in each of the last 1, 2, ... iterations; in the last one also
    apart for accepted draft tokens and for sampled ones.
    """
    counted_BW = committed_BW & seen.counts_BW
    now_BW = probability_of(seen.target_probs_BWV, token_BW)
    steps = min(MOST_RISES, seen.past_BHWV.shape[1])
    before = [probability_of(seen.past_BHWV[:, h], token_BW) for h in range(steps)]
    before_BHW = torch.stack(before, 1)
    newer_BHW = torch.cat([now_BW[:, None], before_BHW[:, :-1]], 1)
    old_enough_BHW = seen.age_BW[:, None] > torch.arange(steps, device=now_BW.device)[:, None]
    in_a_row_BHW = (newer_BHW > before_BHW).long().cumprod(1).bool() & old_enough_BHW
    rose_BW = in_a_row_BHW[:, 0]
    return {
        "committed": counted_BW.sum(-1),
        "grew_in_window": (counted_BW & (now_BW > probability_of(seen.first_BWV, token_BW))).sum(
            -1
        ),
        "could_grow_N": (counted_BW[:, None] & old_enough_BHW).sum(-1),
        "grew_N": (counted_BW[:, None] & in_a_row_BHW).sum(-1),
        "accepted": (counted_BW & accepted_BW).sum(-1),
        "accepted_grew": (counted_BW & accepted_BW & rose_BW).sum(-1),
        "sampled_grew": (counted_BW & ~accepted_BW & rose_BW).sum(-1),
    }


def rises(seen: WindowHistory, top_k: int) -> dict[str, Tensor]:
    """Count top tokens that had risen 0, 1, ... times in a row, and those that rose once more.

    The top tokens are those of the last iteration; `mass` weights each by its probability there.
    """
    newest_BHWT, top_BWT = _top_tokens(seen, top_k)
    last_BWT = newest_BHWT[:, 0]
    again_BWT = seen.target_probs_BWV.gather(-1, top_BWT) > last_BWT
    had: list[Tensor] = [seen.counts_BW[..., None].expand_as(again_BWT)]
    for n in range(1, min(MOST_RISES, newest_BHWT.shape[1] - 1) + 1):
        had.append(had[0] & rising(newest_BHWT, seen.age_BW - 1, n))
    had_BNWT = torch.stack(had, 1)
    rose_BNWT = had_BNWT & again_BWT[:, None]
    return {
        "rises_N": had_BNWT.sum((-1, -2)),
        "rises_again_N": rose_BNWT.sum((-1, -2)),
        "rises_mass_N": (had_BNWT * last_BWT[:, None]).sum((-1, -2)),
        "rises_again_mass_N": (rose_BNWT * last_BWT[:, None]).sum((-1, -2)),
    }


def distances(
    seen: WindowHistory,
    predict: Callable[[Tensor, Tensor], Tensor],
    top_k: int,
    committed_BW: Tensor,
) -> dict[str, Tensor]:
    """Sum the total variation between the newest distribution and each prediction made before it.

    1 minus it is the acceptance probability of a draft token from that prediction. Sums are by
    position in the window, and over committed positions.
    """
    newest_BHWT, top_BWT = _top_tokens(seen, top_k)
    last_BWT, target_probs_BWT = newest_BHWT[:, 0], seen.target_probs_BWV.gather(-1, top_BWT)
    predicted_BKWT = predict(newest_BHWT, seen.age_BW - 1)
    # Below the top tokens every prediction is the last distribution itself.
    all_BW = total_variation(seen.past_BHWV[:, 0], seen.target_probs_BWV)
    below_BW = all_BW - total_variation(last_BWT, target_probs_BWT)
    apart_BKW = total_variation(predicted_BKWT, target_probs_BWT[:, None]) + below_BW[:, None]
    at_commit_BW = seen.counts_BW & committed_BW
    return {
        "seen_W": seen.counts_BW.long(),
        "apart_KW": apart_BKW.where(seen.counts_BW[:, None], 0.0),
        "apart_committed_K": apart_BKW.where(at_commit_BW[:, None], 0.0).sum(-1),
    }


def _top_tokens(seen: WindowHistory, top_k: int) -> tuple[Tensor, Tensor]:
    """Return the probabilities, newest first, and the indices of the last top tokens."""
    last_BWV = seen.past_BHWV[:, 0]
    vocab_size = last_BWV.shape[-1]
    top_BWT = last_BWV.topk(min(top_k or vocab_size, vocab_size), dim=-1).indices
    index_BHWT = top_BWT[:, None].expand(-1, seen.past_BHWV.shape[1], -1, -1)
    return seen.past_BHWV.gather(-1, index_BHWT), top_BWT


def tests(
    draft_probs_BWV: Tensor,
    target_probs_BWV: Tensor,
    is_draft_BW: Tensor,
    tested_BW: Tensor,
    accepted_BW: Tensor,
) -> dict[str, Tensor]:
    """Count tested and accepted draft tokens by position, and sum the overlap of q and p.

    The overlap is summed over all draft tokens, also those behind a rejected one.
    """
    overlap_BW = 1 - total_variation(draft_probs_BWV, target_probs_BWV)
    return {
        "tested_W": tested_BW.long(),
        "accepted_W": accepted_BW.long(),
        "drafts_W": is_draft_BW.long(),
        "overlap_W": overlap_BW.where(is_draft_BW, 0.0),
    }


def fidelity(target_probs_BWV: Tensor, token_BW: Tensor, committed_BW: Tensor) -> dict[str, Tensor]:
    """Sum the log-likelihood of committed tokens and the entropy of their distributions, in nats.

    All tokens before a committed position are committed too, so the distribution of this forward
    pass is the model's own.
    """
    log_p_BWV = target_probs_BWV.clamp(min=torch.finfo(target_probs_BWV.dtype).tiny).log()
    return {
        "tokens": committed_BW.sum(-1),
        "log_likelihood": probability_of(log_p_BWV, token_BW).where(committed_BW, 0.0).sum(-1),
        "entropy": -(target_probs_BWV * log_p_BWV).sum(-1).where(committed_BW, 0.0).sum(-1),
    }


def predictions(config: PredictionConfig, newest_BHWT: Tensor, age_BW: Tensor) -> Tensor:
    """Return the distributions that `PREDICTIONS` names [B, K, W, T].

    The arguments are those of `sjdvp.decode.prediction.predictions`.
    """
    trend, p_BWT = Trend(newest_BHWT, age_BW, config.decay), newest_BHWT[:, 0]
    grown_BWT, moved_BWT = published(trend, config.rises), momentum(trend)
    gains = [beta * grown_BWT for beta in BETAS] + [value * moved_BWT for value in MOMENTA]
    only_B1WT = _growth_only(p_BWT, scaled(p_BWT, [grown_BWT], config.clip))
    return torch.cat([p_BWT[:, None], scaled(p_BWT, gains, config.clip), only_B1WT], 1)


def _growth_only(p_BWT: Tensor, grown_B1WT: Tensor) -> Tensor:
    """Return log p' = M * S: what the published rule adds to p, without p itself [B, 1, W, T]."""
    growth_B1WT = grown_B1WT / p_BWT.clamp(min=1e-30)[:, None]
    mass_B1W1 = p_BWT.sum(-1, keepdim=True)[:, None]
    return growth_B1WT * (mass_B1W1 / growth_B1WT.sum(-1, keepdim=True).clamp(min=1e-30))
