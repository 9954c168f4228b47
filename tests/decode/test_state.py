"""Picking distributions out of a window, against a loop."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sjdvp.decode.state import columns, pick


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 3))
def test_a_window_moves_forward(by, window, history_length):
    by_B = torch.tensor([min(n, window) for n in by])
    shift_BW = columns(window, by_B.device) + by_B[:, None]
    source_BW = shift_BW.clamp(max=window - 1)
    t_BLWV = torch.randn(len(by), history_length, window, 3)
    moved_BLWV = pick(t_BLWV, source_BW, 2)
    assert moved_BLWV.shape == t_BLWV.shape
    for b, shift in enumerate(by_B.tolist()):
        for w in range(window):
            assert torch.equal(moved_BLWV[b, :, w], t_BLWV[b, :, min(w + shift, window - 1)])


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 7), st.randoms())
def test_pick_is_a_gather_of_whole_entries(batch_size, length, n_picked, random):
    index = torch.tensor(
        [[random.randrange(length) for _ in range(n_picked)] for _ in range(batch_size)]
    ).view(batch_size, n_picked)
    t_BRV = (
        torch.randn(batch_size, length, 4).transpose(0, 1).contiguous().transpose(0, 1)
    )  # any strides will do
    assert torch.equal(
        pick(t_BRV, index.long()), t_BRV.gather(1, index.long()[..., None].expand(-1, -1, 4))
    )
