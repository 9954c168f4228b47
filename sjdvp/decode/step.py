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
from sjdvp.decode.state import State, columns
from sjdvp.rng import Noise, position_keys


def decode_step(decoder: Decoder, state: State, logits_BWV: Tensor) -> State:
    """Verify the window against the model's logits, commit, slide the window, predict, draft."""
    layout, form, W, S = decoder.layout, decoder.form, decoder.window, decoder.layout.length
    slot_B1 = columns(len(state.n_B), logits_BWV.device)[:, None]
    column_X = columns(2 * W, logits_BWV.device)
    column_W = column_X[:W]
    # Positions and their noise are made once, for this window and wherever the next one may lie.
    pos_BX = state.n_B[:, None] + column_X
    pos_BW, n_left_B = pos_BX[:, :W], S - state.n_B
    nfe_B = state.nfe_B + 1
    noise = Noise(state.position_key_BS.gather(1, pos_BX), nfe_B)

    # 1. Verify: test the draft tokens x ~ q against the target distributions p, left to right.
    q_BWY, x_BW = state.draft_probs_BWY, state.draft_BW
    p_BWY = form.to_probs(logits_BWV, layout.forced_at(pos_BW), decoder.sampling).to(q_BWY.dtype)
    verdict = decoder.verifier(p_BWY, q_BWY, x_BW, noise.first(W))

    # 2. Commit the accepted tokens and the one after them: resampled, or the bonus token.
    n_new_B = torch.minimum(verdict.accepted_B + 1, n_left_B)
    accepted_BW = column_W < verdict.accepted_B[:, None]
    token_BW = torch.where(accepted_BW, x_BW, verdict.token_B[:, None])
    tokens_BS = state.tokens_BS.scatter(1, pos_BW, token_BW)  # those not committed do not count
    accept_map_BS = state.accept_map_BS.scatter(1, pos_BW, accepted_BW)
    recent_BAY = _put(state.recent_BAY, slot_B1, layout.cell(pos_BW), p_BWY)

    # 3. Slide the window: column w of the next window is column w + n_new of this one, or enters.
    shift_BW = column_W + n_new_B[:, None]
    source_BW, enters_BW = shift_BW.clamp(max=W - 1), shift_BW >= W
    source = (slot_B1, source_BW)
    old_x_BW, old_q_BWY = x_BW[source], q_BWY[source]
    has_old_BW = shift_BW < W - 1  # the last column had no draft token

    # 4. Predict the distribution that the next draft tokens are sampled from. It is stored as q.
    is_new_BW = column_W < n_new_B[:, None]
    q_BWY, changed = predict(decoder.prediction, form, state, p_BWY, is_new_BW, source, enters_BW)
    known = Known(p_BWY, x_BW, recent_BAY, slot_B1, pos_BX[:, W], layout, form)
    first_q_BWY = decoder.initialization(known, pos_BX.gather(1, shift_BW))
    q_BWY = torch.where(enters_BW[..., None], first_q_BWY, q_BWY)

    # 5. Draft.
    x_BW = decoder.drafter(q_BWY, old_q_BWY, old_x_BW, has_old_BW, noise.at(shift_BW))
    return replace(
        state,
        n_B=state.n_B + n_new_B,
        nfe_B=nfe_B,
        tokens_BS=tokens_BS,
        accept_map_BS=accept_map_BS,
        draft_BW=x_BW,
        draft_probs_BWY=q_BWY,
        recent_BAY=recent_BAY,
        bad_B=state.bad_B.logical_or(form.unusable(logits_BWV, p_BWY)),
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
    layout, form, W = decoder.layout, decoder.form, decoder.window
    dtype = state.draft_probs_BWY.dtype
    slots_B = torch.tensor(slots, device=key_B.device)  # once: a GPU waits for every such copy
    state.reset(slots_B, key_B)
    pos_BS = columns(state.position_key_BS.shape[1], key_B.device).expand(len(slots), -1)
    position_key_BS, zero_B = position_keys(key_B, pos_BS), torch.zeros_like(key_B)
    pos_BW = pos_BS[:, 1 : W + 1]
    p_B1Y = form.to_probs(logits_BV[:, None], layout.forced_at(pos_BS[:, :1]), decoder.sampling)
    p_B1Y = p_B1Y.to(dtype)
    noise = Noise(position_key_BS[:, :1], zero_B)
    no_q_B1Y = torch.zeros_like(p_B1Y)
    token_B = decoder.verifier(p_B1Y, no_q_B1Y, zero_B[:, None], noise).token_B
    state.n_B.index_fill_(0, slots_B, 1)
    state.position_key_BS[slots_B] = position_key_BS
    state.tokens_BS[slots_B, 0] = token_B
    state.bad_B[slots_B] = form.unusable(logits_BV[:, None], p_B1Y).bool()
    if state.recent_BAY.shape[1]:
        forced_BA = layout.forced_at(pos_BS[:, : layout.n_cells])
        state.recent_BAY[slots_B] = form.uniform(forced_BA, dtype)
        state.recent_BAY[slots_B, 0] = p_B1Y[:, 0]

    slot_B1 = columns(len(slots), key_B.device)[:, None]
    recent_BAY = state.recent_BAY[slots_B]
    known = Known(p_B1Y, token_B[:, None], recent_BAY, slot_B1, zero_B + 1, layout, form)
    q_BWY = decoder.initialization(known, pos_BW)
    no_BW = torch.zeros_like(state.draft_BW[slots_B])
    noise = Noise(position_key_BS[:, 1 : W + 1], zero_B)
    state.draft_probs_BWY[slots_B] = q_BWY
    state.draft_BW[slots_B] = decoder.drafter(q_BWY, q_BWY, no_BW, no_BW.bool(), noise)


def _put(recent_BAY: Tensor, slot_B1: Tensor, cell_BW: Tensor, p_BWY: Tensor) -> Tensor:
    """Return the newest distribution of each cell, with this window's put in."""
    n_cells = recent_BAY.shape[1]
    if n_cells == 0:
        return recent_BAY
    # A window wider than the cells holds several positions of one: the last of them counts.
    return recent_BAY.index_put((slot_B1, cell_BW[:, -n_cells:]), p_BWY[:, -n_cells:])
