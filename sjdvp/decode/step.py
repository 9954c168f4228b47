"""One decoding step: logits of the window in, the next window out. Tensors of fixed shape, no host read, no branch on data.

The same function runs eagerly, compiled and under a CUDA graph.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from sjdvp.config import SamplingConfig
from sjdvp.decode.fresh import RULES, Known
from sjdvp.decode.prior import rising
from sjdvp.decode.verifiers import probability_of
from sjdvp.decode.window import Layout, State, columns, shift, take
from sjdvp.interfaces import Drafter, Prior, Verdict, Verifier
from sjdvp.rng import Noise
from sjdvp.sampling import laws, one_hot_where

SCORE_MEMORY = 0.98  # how much of a candidate's score one more committed position keeps
MARGIN = 0.01  # by how much of the plain law's score another must be better before it is used


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder: its parts, and how logits become laws."""

    sampling: SamplingConfig
    layout: Layout
    window: int
    drafter: Drafter
    verifier: Verifier
    prior: Prior
    fresh: str
    rises: int  # N, for the figures that are logged about growth
    top_k: int  # how many codes of a law prediction may move; 0: all

    def idle_state(self, n_rows: int, dtype: torch.dtype, device: torch.device) -> State:
        """Allocate a state of idle rows."""
        n_trail = max(self.window, self.layout.stride) if self.fresh == "above" else 0
        return State.idle(
            n_rows, self.window, self.layout, n_laws=self.prior.n_laws, n_candidates=self.prior.n_candidates, n_top=self.n_top,
            n_trail=n_trail, dtype=dtype, device=device,
        )  # fmt: skip

    @property
    def predicts(self) -> bool:
        """Whether there is a prior at all."""
        return self.prior.n_candidates > 0

    @property
    def n_top(self) -> int:
        """How many codes of a law prediction may move, T."""
        n_codes = self.layout.n_codes
        return min(self.top_k or n_codes, n_codes) if self.predicts else 0


def window_input(state: State, window: int) -> tuple[Tensor, Tensor]:
    """Return the codes that the trunk is fed [B, W] (the last committed one, then the drafts) and their image positions."""
    last_B1 = state.codes_BS.gather(1, (state.n_B - 1)[:, None])
    pos_BW = state.n_B[:, None] - 1 + columns(window, state.n_B.device)
    return torch.cat([last_B1, state.draft_BW[:, : window - 1]], 1), pos_BW


def admit(decoder: Decoder, state: State, rows: list[int], logits_BV: Tensor, key_B: Tensor) -> None:
    """Start new images in `rows`, in place: position 0 is drawn from the prefill's law, the first drafts from the fresh rule.

    `logits_BV` and `key_B` hold one line for each of `rows`.
    """
    state.reset(rows, key_B)
    pos_B1 = torch.zeros(len(rows), 1, dtype=torch.int64, device=key_B.device)
    p_B1V = laws(logits_BV[:, None], decoder.layout.forced_at(pos_B1), decoder.sampling).to(state.q_BWV.dtype)
    no_draft_B1 = torch.zeros_like(pos_B1, dtype=torch.bool)
    verdict = decoder.verifier(p_B1V, torch.zeros_like(p_B1V), pos_B1, no_draft_B1, Noise(key_B, pos_B1, pos_B1[:, 0]))
    state.codes_BS[rows, 0] = verdict.token_B
    state.bad_B[rows] = ~logits_BV.isfinite().all(-1)
    state.n_B[rows] = 1
    if state.trail_BRV.shape[1]:
        state.trail_BRV[rows, 0] = p_B1V[:, 0]
    first = State(*[tensor[rows] for tensor in state.tensors()])
    end_B = torch.ones_like(key_B)  # positions from 1 on have had no law
    known = Known(p_B1V, verdict.token_B[:, None], first.trail_BRV, end_B, decoder.layout)
    pos_BW = end_B[:, None] + columns(decoder.window, key_B.device)
    law_BWV = one_hot_where(decoder.layout.forced_at(pos_BW), RULES[decoder.fresh](known, pos_BW))
    no_draft_BW = torch.zeros_like(pos_BW, dtype=torch.bool)
    state.q_BWV[rows] = law_BWV
    state.draft_BW[rows] = decoder.drafter(law_BWV, first.q_BWV, first.draft_BW, no_draft_BW, Noise(key_B, pos_BW, first.step_B))


def decode_step(decoder: Decoder, state: State, logits_BWV: Tensor) -> State:
    """Verify the window against the laws of `logits_BWV` [B, W, V], commit what stands, and draft the next window."""
    layout = decoder.layout
    col_W = columns(decoder.window, logits_BWV.device)
    step_B = state.step_B + (state.n_B < layout.length)
    pos_BW = state.n_B[:, None] + col_W
    p_BWV = laws(logits_BWV, layout.forced_at(pos_BW), decoder.sampling).to(state.q_BWV.dtype)
    live_BW = (col_W < decoder.window - 1) & (pos_BW < layout.length)

    verdict = decoder.verifier(p_BWV, state.q_BWV, state.draft_BW, live_BW, Noise(state.key_B, pos_BW, step_B))
    n_new_B = torch.minimum(verdict.accepted_B + 1, layout.length - state.n_B)
    committed_BW = torch.where(col_W < verdict.accepted_B[:, None], state.draft_BW, verdict.token_B[:, None])
    judged = replace(
        state,
        step_B=step_B,
        codes_BS=_write(state.codes_BS, pos_BW, committed_BW, col_W < n_new_B[:, None]),
        stood_BS=_write(state.stood_BS, pos_BW, torch.ones_like(pos_BW), col_W < verdict.accepted_B[:, None]),
        trail_BRV=_lay_trail(state.trail_BRV, pos_BW, p_BWV),
        score_BK=_score(state, p_BWV, n_new_B),
        tally_BT=state.tally_BT + _count(decoder, state, pos_BW, p_BWV, committed_BW, live_BW, verdict, n_new_B),
        commits_BN=state.commits_BN.scatter_add(1, n_new_B[:, None], (n_new_B > 0).long()[:, None]),
        bad_B=state.bad_B | ((state.n_B < layout.length) & ~logits_BWV.isfinite().all(-1).all(-1)),
    )
    return _redraft(decoder, judged, p_BWV, live_BW, n_new_B)


def _redraft(decoder: Decoder, state: State, p_BWV: Tensor, live_BW: Tensor, n_new_B: Tensor) -> State:
    """Move the window forward by n_new_B and draw its drafts anew: the one place where a draft is drawn and its law is stored."""
    layout, col_W = decoder.layout, columns(decoder.window, p_BWV.device)
    fresh_BW = col_W + n_new_B[:, None] >= decoder.window
    end_B = state.n_B + decoder.window
    n_B = state.n_B + n_new_B
    pos_BW = n_B[:, None] + col_W
    q_BWV, draft_BW = shift(state.q_BWV, n_new_B), shift(state.draft_BW, n_new_B)
    past_BLWV, age_BW = shift(state.past_BLWV, n_new_B, 2), shift(state.age_BW, n_new_B)
    moved_BWV = shift(p_BWV, n_new_B)

    law_BWV, forecast = _predict(decoder, state.score_BK, moved_BWV, past_BLWV, age_BW)
    known = Known(p_BWV, state.draft_BW, state.trail_BRV, end_B, layout)
    law_BWV = torch.where(fresh_BW[..., None], RULES[decoder.fresh](known, pos_BW), law_BWV)
    law_BWV = one_hot_where(layout.forced_at(pos_BW), law_BWV)
    was_live_BW = shift(live_BW, n_new_B) & ~fresh_BW
    draft_BW = decoder.drafter(law_BWV, q_BWV, draft_BW, was_live_BW, Noise(state.key_B, pos_BW, state.step_B))
    return replace(
        state,
        n_B=n_B,
        draft_BW=draft_BW,
        q_BWV=law_BWV,
        past_BLWV=torch.cat([moved_BWV[:, None], past_BLWV[:, :-1]], 1) if decoder.prior.n_laws else past_BLWV,
        age_BW=torch.where(fresh_BW, 0, (age_BW + 1).clamp(max=max(past_BLWV.shape[1], 1))),
        **forecast,
    )


def _predict(
    decoder: Decoder, score_BK: Tensor, p_BWV: Tensor, past_BLWV: Tensor, age_BW: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the predicted law of each position, and what the state keeps in order to judge the prediction at the next step."""
    if not decoder.predicts:
        return p_BWV, {}
    p_BWT, top_BWT = p_BWV.topk(decoder.n_top, dim=-1)
    past_BLWT = past_BLWV.gather(-1, top_BWT[:, None].expand(-1, past_BLWV.shape[1], -1, -1))
    guess_BKWT = decoder.prior(p_BWT, past_BLWT, age_BW)
    law_BWV = p_BWV.scatter(-1, top_BWT, _chosen(guess_BKWT, score_BK))
    rose_BWT = rising(p_BWT, past_BLWT, age_BW, min(decoder.rises, past_BLWT.shape[1]))
    return law_BWV, {"top_BWT": top_BWT, "rose_BWT": rose_BWT, "guess_BKWT": guess_BKWT}


def _write(codes_BS: Tensor, pos_BW: Tensor, value_BW: Tensor, where_BW: Tensor) -> Tensor:
    return codes_BS.scatter(1, pos_BW, torch.where(where_BW, value_BW, codes_BS.gather(1, pos_BW)))


def _lay_trail(trail_BRV: Tensor, pos_BW: Tensor, p_BWV: Tensor) -> Tensor:
    if trail_BRV.shape[1] == 0:
        return trail_BRV
    return trail_BRV.scatter(1, pos_BW.remainder(trail_BRV.shape[1])[..., None].expand_as(p_BWV), p_BWV)


def total_variation(a: Tensor, b: Tensor) -> Tensor:
    """Return half the L1 distance of two laws over the last dimension."""
    return (a - b).abs().sum(-1) / 2


def _looked(state: State, n_new_B: Tensor) -> Tensor:
    """Return which columns are committed now and had been looked at before [B, W]."""
    return (columns(state.age_BW.shape[1], n_new_B.device) < n_new_B[:, None]) & (state.age_BW > 0)


def _score(state: State, p_BWV: Tensor, n_new_B: Tensor) -> Tensor:
    """Update the running distance between each candidate law of the last step and the law that came.

    Only positions committed now count: what is chosen for a later position never depends on that position's own draft. Candidates
    differ among the top codes alone, so the distance is taken there.
    """
    looked_BW = _looked(state, n_new_B)
    p_BWT = p_BWV.gather(-1, state.top_BWT)
    missed_BK = (total_variation(state.guess_BKWT, p_BWT[:, None]) * looked_BW[:, None]).sum(-1)
    return state.score_BK * SCORE_MEMORY ** looked_BW.sum(-1, keepdim=True).to(missed_BK.dtype) + missed_BK


def _chosen(guess_BKWT: Tensor, score_BK: Tensor) -> Tensor:
    """Return each row's candidate with the lowest score; the first one unless another is better by a margin."""
    handicap_K = torch.ones_like(score_BK[0])
    handicap_K[0] = 1 - MARGIN
    return take(guess_BKWT, (score_BK * handicap_K).argmin(-1))


def _count(
    decoder: Decoder,
    state: State,
    pos_BW: Tensor,
    p_BWV: Tensor,
    committed_BW: Tensor,
    live_BW: Tensor,
    verdict: Verdict,
    n_new_B: Tensor,
) -> Tensor:
    """Return this step's part of the tally: counts in the order of `Tally`, whose members torch.compile cannot take as an index.

    Forced positions do not count: nothing about them is decided.
    """
    accepted_B1, col_W = verdict.accepted_B[:, None], columns(decoder.window, pos_BW.device)
    open_BW = ~decoder.layout.forced_at(pos_BW)
    counts_B = [(live_BW & open_BW & (col_W <= accepted_B1)).sum(-1), (open_BW & (col_W < accepted_B1)).sum(-1)]
    if decoder.predicts:
        looked_BW = _looked(state, n_new_B) & open_BW
        last_BWV = state.past_BLWV[:, 0]
        grew_BW = probability_of(p_BWV, committed_BW) > probability_of(last_BWV, committed_BW)
        rose_BWT = state.rose_BWT & looked_BW[..., None]
        again_BWT = rose_BWT & (p_BWV.gather(-1, state.top_BWT) > last_BWV.gather(-1, state.top_BWT))
        tv_plain_BW, tv_prior_BW = total_variation(last_BWV, p_BWV), total_variation(state.q_BWV, p_BWV)
        counts_B += [looked_BW.sum(-1), (grew_BW & looked_BW).sum(-1)]
        counts_B += [(tv_plain_BW * looked_BW).sum(-1), (tv_prior_BW * looked_BW).sum(-1)]
        counts_B += [rose_BWT.sum((-1, -2)), again_BWT.sum((-1, -2))]
    counts_BT = torch.stack([count_B.to(state.tally_BT.dtype) for count_B in counts_B], -1)
    return pad(counts_BT, (0, state.tally_BT.shape[1] - counts_BT.shape[1]))
