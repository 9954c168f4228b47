"""One decoding step: logits of the window in, the next window out. Tensors of fixed shape, no host read, no branch on data.

The same function runs eagerly, compiled and under a CUDA graph.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from sjdvp.config import SamplingConfig
from sjdvp.decode.initialization import RULES, Known
from sjdvp.decode.prediction import rising
from sjdvp.decode.state import State, columns, pick, sources, take
from sjdvp.decode.verify import probability_of
from sjdvp.interfaces import Drafter, ImageLayout, Predictor, Verifier
from sjdvp.rng import Noise
from sjdvp.sampling import one_hot_where, to_probs

SCORE_MEMORY = 0.98  # how much of a candidate's score one more committed position keeps
MARGIN = (
    0.01  # by how much of the plain distribution's score another must be better before it is used
)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder: its parts, and how logits become distributions."""

    sampling: SamplingConfig
    layout: ImageLayout
    window: int
    drafter: Drafter
    verifier: Verifier
    prediction: Predictor
    init: str
    rises: int  # N, for the figures that are logged about growth
    top_k: int  # how many tokens of a distribution prediction may move; 0: all

    def idle_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> State:
        """Allocate a state of idle rows."""
        n_trail = max(self.window, self.layout.stride) if self.init == "above" else 0
        return State.idle(
            batch_size, self.window, self.layout, history_length=self.prediction.history_length, n_predictions=self.prediction.n_predictions, n_top=self.n_top,
            n_trail=n_trail, dtype=dtype, device=device,
        )  # fmt: skip

    @property
    def predicts(self) -> bool:
        """Whether there is a prediction at all."""
        return self.prediction.n_predictions > 0

    @property
    def n_top(self) -> int:
        """How many tokens of a distribution prediction may move, T."""
        vocab_size = self.layout.vocab_size
        return min(self.top_k or vocab_size, vocab_size) if self.predicts else 0


@dataclass(frozen=True, slots=True)
class _Found:
    """What a step has found of the columns of its window, before it moves on."""

    token_BW: Tensor  # the draft where it stands, what was drawn instead where the first one falls
    tested_BW: Tensor  # bool: up to and with the first draft that falls
    stands_BW: Tensor
    looked_BW: Tensor  # bool: committed now, and looked at before
    open_BW: Tensor  # bool: not forced


def window_input(state: State, window: int) -> tuple[Tensor, Tensor]:
    """Return the tokens that the transformer is fed [B, W] (the last committed one, then the drafts) and their image positions."""
    last_B1 = state.tokens_BS.gather(1, (state.n_B - 1)[:, None])
    pos_BW = state.n_B[:, None] - 1 + columns(window, state.n_B.device)
    return torch.cat([last_B1, state.draft_BW[:, : window - 1]], 1), pos_BW


def admit(
    decoder: Decoder, state: State, rows: list[int], logits_BV: Tensor, key_B: Tensor
) -> None:
    """Start new images in `rows`, in place: position 0 is drawn from the prefill's distribution, the first drafts from the fresh rule.

    `logits_BV` and `key_B` hold one line for each of `rows`.
    """
    state.reset(rows, key_B)
    pos_B1 = torch.zeros(len(rows), 1, dtype=torch.int64, device=key_B.device)
    p_B1V = to_probs(logits_BV[:, None], decoder.layout.forced_at(pos_B1), decoder.sampling).to(
        state.draft_probs_BWV.dtype
    )
    no_draft_B1 = torch.zeros_like(pos_B1, dtype=torch.bool)
    verdict = decoder.verifier(
        p_B1V, torch.zeros_like(p_B1V), pos_B1, no_draft_B1, Noise(key_B, pos_B1, pos_B1[:, 0])
    )
    state.tokens_BS[rows, 0] = verdict.token_B
    state.bad_B[rows] = ~_finite(logits_BV[:, None])
    state.n_B[rows] = 1
    if state.trail_BRV.shape[1]:
        state.trail_BRV[rows, 0] = p_B1V[:, 0]
    first = State(*[tensor[rows] for tensor in state.tensors()])
    end_B = torch.ones_like(key_B)  # positions from 1 on have had no distribution
    known = Known(p_B1V, verdict.token_B[:, None], first.trail_BRV, end_B, decoder.layout)
    pos_BW = end_B[:, None] + columns(decoder.window, key_B.device)
    probs_BWV = one_hot_where(decoder.layout.forced_at(pos_BW), RULES[decoder.init](known, pos_BW))
    no_draft_BW = torch.zeros_like(pos_BW, dtype=torch.bool)
    state.draft_probs_BWV[rows] = probs_BWV
    state.draft_BW[rows] = decoder.drafter(
        probs_BWV,
        first.draft_probs_BWV,
        first.draft_BW,
        no_draft_BW,
        Noise(key_B, pos_BW, first.step_B),
    )


def decode_step(decoder: Decoder, state: State, logits_BWV: Tensor) -> State:
    """Verify the window against the distributions of `logits_BWV` [B, W, V], commit what stands, and draft the next window."""
    layout, window = decoder.layout, decoder.window
    step_B = state.step_B + (state.n_B < layout.length)
    # What belongs to an image position is made once for this window and for all places that the next one may have.
    pos_BX = state.n_B[:, None] + columns(2 * window, logits_BWV.device)
    forced_BX, noise = layout.forced_at(pos_BX), Noise(state.key_B, pos_BX, step_B)
    pos_BW, forced_BW = pos_BX[:, :window], forced_BX[:, :window]

    target_probs_BWV = to_probs(logits_BWV, forced_BW, decoder.sampling).to(
        state.draft_probs_BWV.dtype
    )
    col_W = columns(window, logits_BWV.device)
    live_BW = (col_W < window - 1) & (pos_BW < layout.length)
    verdict = decoder.verifier(
        target_probs_BWV, state.draft_probs_BWV, state.draft_BW, live_BW, noise.first(window)
    )
    n_new_B = torch.minimum(verdict.accepted_B + 1, layout.length - state.n_B)
    stands_BW, new_BW = col_W < verdict.accepted_B[:, None], col_W < n_new_B[:, None]
    found = _Found(
        token_BW=torch.where(stands_BW, state.draft_BW, verdict.token_B[:, None]),
        tested_BW=live_BW & (col_W <= verdict.accepted_B[:, None]),
        stands_BW=stands_BW,
        looked_BW=new_BW & (state.age_BW > 0),
        open_BW=~forced_BW,
    )
    judged = replace(
        state,
        step_B=step_B,
        tokens_BS=_write(state.tokens_BS, pos_BW, found.token_BW, new_BW),
        stood_BS=_write(state.stood_BS, pos_BW, stands_BW.long(), new_BW),
        trail_BRV=_lay_trail(state.trail_BRV, pos_BW, target_probs_BWV),
        score_BK=_score(state, target_probs_BWV, found.looked_BW),
        tally_BT=state.tally_BT + _count(decoder, state, target_probs_BWV, found),
        commits_BN=state.commits_BN.scatter_add(1, n_new_B[:, None], (n_new_B > 0).long()[:, None]),
        bad_B=state.bad_B | ((state.n_B < layout.length) & ~_finite(logits_BWV)),
    )
    return _redraft(decoder, judged, target_probs_BWV, live_BW, forced_BX, noise, n_new_B)


def _redraft(
    decoder: Decoder,
    state: State,
    target_probs_BWV: Tensor,
    live_BW: Tensor,
    forced_BX: Tensor,
    noise: Noise,
    n_new_B: Tensor,
) -> State:
    """Move the window forward by n_new_B and draw its drafts anew: the one place where a draft is drawn and its distribution is stored."""
    window = decoder.window
    moved_BW = columns(window, target_probs_BWV.device) + n_new_B[:, None]
    source_BW = sources(window, n_new_B)
    fresh_BW = moved_BW >= window
    pos_BW = state.n_B[:, None] + moved_BW
    draft_BW, age_BW = state.draft_BW.gather(1, source_BW), state.age_BW.gather(1, source_BW)
    draft_probs_BWV, moved_BWV = (
        pick(state.draft_probs_BWV, source_BW),
        pick(target_probs_BWV, source_BW),
    )
    history_BLWV = (
        pick(state.history_BLWV, source_BW, 2)
        if decoder.prediction.history_length
        else state.history_BLWV
    )

    probs_BWV, forecast = _predict(decoder, state.score_BK, moved_BWV, history_BLWV, age_BW)
    known = Known(
        target_probs_BWV, state.draft_BW, state.trail_BRV, state.n_B + window, decoder.layout
    )
    probs_BWV = torch.where(fresh_BW[..., None], RULES[decoder.init](known, pos_BW), probs_BWV)
    probs_BWV = one_hot_where(forced_BX.gather(1, moved_BW), probs_BWV)
    was_live_BW = live_BW.gather(1, source_BW) & ~fresh_BW
    draft_BW = decoder.drafter(
        probs_BWV, draft_probs_BWV, draft_BW, was_live_BW, noise.after(n_new_B, window)
    )
    return replace(
        state,
        n_B=state.n_B + n_new_B,
        draft_BW=draft_BW,
        draft_probs_BWV=probs_BWV,
        history_BLWV=_remember(moved_BWV, history_BLWV)
        if decoder.prediction.history_length
        else history_BLWV,
        age_BW=torch.where(fresh_BW, 0, (age_BW + 1).clamp(max=max(history_BLWV.shape[1], 1))),
        **forecast,
    )


def _remember(target_probs_BWV: Tensor, history_BLWV: Tensor) -> Tensor:
    # In three dimensions: the four of a stack of distributions torch.compile takes for images, and lays them out channels last.
    return torch.cat([target_probs_BWV, history_BLWV[:, :-1].flatten(1, 2)], 1).view_as(
        history_BLWV
    )


def _predict(
    decoder: Decoder,
    score_BK: Tensor,
    target_probs_BWV: Tensor,
    history_BLWV: Tensor,
    age_BW: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the predicted distribution of each position, and what the state keeps in order to judge the prediction at the next step."""
    if not decoder.predicts:
        return target_probs_BWV, {}
    target_probs_BWT, top_BWT = target_probs_BWV.topk(decoder.n_top, dim=-1)
    history_BLWT = history_BLWV.gather(
        -1, top_BWT[:, None].expand(-1, history_BLWV.shape[1], -1, -1)
    )
    guess_BKWT = decoder.prediction(target_probs_BWT, history_BLWT, age_BW)
    probs_BWV = target_probs_BWV.scatter(-1, top_BWT, _chosen(guess_BKWT, score_BK))
    rose_BWT = rising(
        target_probs_BWT, history_BLWT, age_BW, min(decoder.rises, history_BLWT.shape[1])
    )
    return probs_BWV, {"top_BWT": top_BWT, "rose_BWT": rose_BWT, "guess_BKWT": guess_BKWT}


def _finite(logits_BWV: Tensor) -> Tensor:
    """Return whose logits are all finite: nought times anything else is not nought."""
    return (logits_BWV * 0).sum((-1, -2)) == 0


def _write(tokens_BS: Tensor, pos_BW: Tensor, value_BW: Tensor, where_BW: Tensor) -> Tensor:
    return tokens_BS.scatter(
        1, pos_BW, torch.where(where_BW, value_BW, tokens_BS.gather(1, pos_BW))
    )


def _lay_trail(trail_BRV: Tensor, pos_BW: Tensor, target_probs_BWV: Tensor) -> Tensor:
    batch_size, n_trail, _ = trail_BRV.shape
    if n_trail == 0:
        return trail_BRV
    row_B1 = torch.arange(batch_size, device=pos_BW.device)[:, None]
    return trail_BRV.index_put((row_B1, pos_BW.remainder(n_trail)), target_probs_BWV)


def total_variation(a: Tensor, b: Tensor) -> Tensor:
    """Return half the L1 distance of two distributions over the last dimension."""
    return (a - b).abs().sum(-1) / 2


def _score(state: State, target_probs_BWV: Tensor, looked_BW: Tensor) -> Tensor:
    """Update the running distance between each candidate distribution of the last step and the distribution that came.

    Only positions committed now count: what is chosen for a later position never depends on that position's own draft. Candidates
    differ among the top tokens alone, so the distance is taken there.
    """
    target_probs_BWT = target_probs_BWV.gather(-1, state.top_BWT)
    missed_BK = (
        total_variation(state.guess_BKWT, target_probs_BWT[:, None]) * looked_BW[:, None]
    ).sum(-1)
    return (
        state.score_BK * SCORE_MEMORY ** looked_BW.sum(-1, keepdim=True).to(missed_BK.dtype)
        + missed_BK
    )


def _chosen(guess_BKWT: Tensor, score_BK: Tensor) -> Tensor:
    """Return each row's candidate with the lowest score; the first one unless another is better by a margin."""
    handicap_K = torch.ones_like(score_BK[0])
    handicap_K[0] = 1 - MARGIN
    return take(guess_BKWT, (score_BK * handicap_K).argmin(-1))


def _count(decoder: Decoder, state: State, target_probs_BWV: Tensor, found: _Found) -> Tensor:
    """Return this step's part of the tally: counts in the order of `Tally`, whose members torch.compile cannot take as an index.

    Only open positions count: about a forced one nothing is decided.
    """
    counted, sums = [found.tested_BW, found.stands_BW], []
    if decoder.predicts:
        last_BWV, looked_BW = state.history_BLWV[:, 0], found.looked_BW & found.open_BW
        grew_BW = probability_of(target_probs_BWV, found.token_BW) > probability_of(
            last_BWV, found.token_BW
        )
        counted += [looked_BW, looked_BW & grew_BW]
        apart_BTW = torch.stack(
            [
                total_variation(last_BWV, target_probs_BWV),
                total_variation(state.draft_probs_BWV, target_probs_BWV),
            ],
            1,
        )
        rose_BWT = state.rose_BWT & looked_BW[..., None]
        again_BWT = rose_BWT & (
            target_probs_BWV.gather(-1, state.top_BWT) > last_BWV.gather(-1, state.top_BWT)
        )
        sums = [
            (apart_BTW * looked_BW[:, None]).sum(-1),
            torch.stack([rose_BWT, again_BWT], 1).sum((-1, -2)),
        ]
    counts_BT = torch.cat(
        [(torch.stack(counted, 1) & found.open_BW[:, None]).sum(-1), *sums], -1
    ).to(state.tally_BT.dtype)
    return pad(counts_BT, (0, state.tally_BT.shape[1] - counts_BT.shape[1]))
