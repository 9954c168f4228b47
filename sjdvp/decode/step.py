"""One iteration of speculative Jacobi decoding: logits of the window in, the next window out.

Tensors of fixed shape, no host read, no branch on data: the same function runs eagerly, compiled
and in a CUDA graph. `tests/decode/reference.py` says the same in plain loops.
"""

from dataclasses import replace

import torch
from torch import Tensor

from sjdvp.decode.decoder import Decoder
from sjdvp.decode.draft import Known
from sjdvp.decode.prediction import predict
from sjdvp.decode.state import State, columns, pick
from sjdvp.rng import Noise
from sjdvp.sampling import one_hot_where, to_probs


def decode_step(decoder: Decoder, state: State, logits_BWV: Tensor) -> State:
    """Verify the window against the model's logits, commit, slide the window, predict, draft."""
    layout, W, S = decoder.layout, decoder.window, decoder.layout.length
    column_W = columns(W, logits_BWV.device)
    nfe_B = state.nfe_B + (state.n_B < S)
    # Positions and their noise are made once, for this window and wherever the next one may lie.
    pos_BX = state.n_B[:, None] + columns(2 * W, logits_BWV.device)
    forced_BX, noise = layout.forced_at(pos_BX), Noise(state.key_B, pos_BX, nfe_B)
    pos_BW = pos_BX[:, :W]

    # 1. Verify: test the draft tokens x ~ q against the target distributions p, left to right.
    p_BWV = to_probs(logits_BWV, forced_BX[:, :W], decoder.sampling).to(state.draft_probs_BWV.dtype)
    q_BWV, x_BW = state.draft_probs_BWV, state.draft_BW
    is_draft_BW = (column_W < W - 1) & (pos_BW < S)
    verdict = decoder.verifier(p_BWV, q_BWV, x_BW, is_draft_BW, noise.first(W))

    # 2. Commit the accepted tokens and the one after them: resampled, or the bonus token.
    n_new_B = torch.minimum(verdict.accepted_B + 1, S - state.n_B)
    accepted_BW = column_W < verdict.accepted_B[:, None]
    token_BW = torch.where(accepted_BW, x_BW, verdict.token_B[:, None])
    tokens_BS = state.tokens_BS.scatter(1, pos_BW, token_BW)  # those not committed do not count
    accept_map_BS = state.accept_map_BS.scatter(1, pos_BW, accepted_BW)
    recent_BAV = _put(state.recent_BAV, pos_BW, p_BWV)

    # 3. Slide the window: column w of the next window is column w + n_new of this one, or enters.
    shift_BW = column_W + n_new_B[:, None]
    source_BW, enters_BW = shift_BW.clamp(max=W - 1), shift_BW >= W
    next_pos_BW = state.n_B[:, None] + shift_BW
    old_x_BW, old_q_BWV = x_BW.gather(1, source_BW), pick(q_BWV, source_BW)
    has_old_BW = is_draft_BW.gather(1, source_BW) & ~enters_BW

    # 4. Predict the distribution that the next draft tokens are sampled from. It is stored as q.
    is_new_BW = column_W < n_new_B[:, None]
    q_BWV, changed = predict(decoder.prediction, state, p_BWV, is_new_BW, source_BW, enters_BW)
    known = Known(p_BWV, x_BW, recent_BAV, state.n_B + W, layout)
    q_BWV = torch.where(enters_BW[..., None], decoder.initialization(known, next_pos_BW), q_BWV)
    q_BWV = one_hot_where(forced_BX.gather(1, shift_BW), q_BWV)

    # 5. Draft.
    x_BW = decoder.drafter(q_BWV, old_q_BWV, old_x_BW, has_old_BW, noise.after(n_new_B, W))
    return replace(
        state,
        n_B=state.n_B + n_new_B,
        nfe_B=nfe_B,
        tokens_BS=tokens_BS,
        accept_map_BS=accept_map_BS,
        draft_BW=x_BW,
        draft_probs_BWV=q_BWV,
        recent_BAV=recent_BAV,
        bad_B=state.bad_B | ~_finite(logits_BWV),
        **changed,
    )


def window_input(state: State, window: int) -> tuple[Tensor, Tensor]:
    """Return the tokens of the forward pass and their image positions, int64 [B, W] each.

    They are the last committed token and the first W - 1 draft tokens.
    """
    last_B1 = state.tokens_BS.gather(1, (state.n_B - 1)[:, None])
    pos_BW = state.n_B[:, None] - 1 + columns(window, state.n_B.device)
    return torch.cat([last_B1, state.draft_BW[:, : window - 1]], 1), pos_BW


def admit(
    decoder: Decoder, state: State, slots: list[int], logits_BV: Tensor, key_B: Tensor
) -> None:
    """Start new images in `slots`, in place: sample position 0, then draft the first window.

    `logits_BV` are the prefill's logits of position 0 and `key_B` the noise keys, one entry for
    each of `slots`.
    """
    layout = decoder.layout
    state.reset(slots, key_B)
    zero_B1 = torch.zeros_like(key_B)[:, None]
    is_draft_B1 = torch.zeros_like(zero_B1, dtype=torch.bool)
    p_B1V = to_probs(logits_BV[:, None], layout.forced_at(zero_B1), decoder.sampling)
    p_B1V = p_B1V.to(state.draft_probs_BWV.dtype)
    noise = Noise(key_B, zero_B1, zero_B1[:, 0])
    token_B = decoder.verifier(p_B1V, torch.zeros_like(p_B1V), zero_B1, is_draft_B1, noise).token_B
    state.tokens_BS[slots, 0] = token_B
    state.n_B[slots] = 1
    state.bad_B[slots] = ~_finite(logits_BV[:, None])
    if state.recent_BAV.shape[1]:
        state.recent_BAV[slots, 0] = p_B1V[:, 0]

    end_B = zero_B1[:, 0] + 1  # positions from 1 on have had no distribution
    pos_BW = end_B[:, None] + columns(decoder.window, key_B.device)
    known = Known(p_B1V, token_B[:, None], state.recent_BAV[slots], end_B, layout)
    q_BWV = one_hot_where(layout.forced_at(pos_BW), decoder.initialization(known, pos_BW))
    has_old_BW = torch.zeros_like(pos_BW, dtype=torch.bool)
    noise = Noise(key_B, pos_BW, zero_B1[:, 0])
    state.draft_probs_BWV[slots] = q_BWV
    state.draft_BW[slots] = decoder.drafter(q_BWV, q_BWV, pos_BW * 0, has_old_BW, noise)


def _put(recent_BAV: Tensor, pos_BW: Tensor, p_BWV: Tensor) -> Tensor:
    """Return the newest distributions with this window's put in, each at its position modulo A."""
    batch_size, n_recent, _ = recent_BAV.shape
    if n_recent == 0:
        return recent_BAV
    slot_B1 = columns(batch_size, pos_BW.device)[:, None]
    return recent_BAV.index_put((slot_B1, pos_BW.remainder(n_recent)), p_BWV)


def _finite(logits_BWV: Tensor) -> Tensor:
    """Return whose logits are all finite, bool [B]: zero times inf or NaN is NaN."""
    return (logits_BWV * 0).sum((-1, -2)) == 0
