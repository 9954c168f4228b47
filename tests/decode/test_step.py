"""The decoding step: shapes, forced tokens, ends of images, rows that fail."""

from dataclasses import replace

import pytest
import torch

from sjdvp import rng
from sjdvp.config import SamplingConfig
from sjdvp.decode.state import Tally
from sjdvp.decode.step import admit, decode_step
from sjdvp.rng import Noise, Purpose
from sjdvp.sampling import to_probs
from tests.decode.table import TableModel, run
from tests.decode.test_exactness import COMBINATIONS, decoder

MODEL = TableModel(vocab_size=3, forced=[False, False, True] * 2, stride=3, sharpness=2.0)
LONG_MODEL = TableModel(vocab_size=3, forced=([False] * 4 + [True]) * 2, stride=5, sharpness=2.0)


def started(parts, window, batch_size=4, model=MODEL):
    the_decoder = decoder(*parts, window=window, model=model)
    state = the_decoder.idle_state(batch_size, torch.float32, torch.device("cpu"))
    first = model.logits(
        torch.zeros(batch_size, 6, dtype=torch.int64), torch.zeros(batch_size, dtype=torch.int64)
    ).float()
    admit(the_decoder, state, list(range(batch_size)), first, rng.keys(list(range(batch_size))))
    return the_decoder, state


@pytest.mark.parametrize("parts", COMBINATIONS)
def test_a_step_keeps_every_shape_and_dtype(parts):
    the_decoder, state = started(parts, window=4)
    new = decode_step(the_decoder, state, MODEL.window_logits(state, 4).float())
    for before, after in zip(state.tensors(), new.tensors(), strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)


@pytest.mark.parametrize("window", [1, 2, 5, 20])
def test_forced_tokens_are_never_rejected_and_nothing_is_written_past_the_end(window):
    images, nfe = run(
        MODEL, decoder("coupled", "above", "published", window, model=MODEL), list(range(200)), 200
    )
    assert (images[:, 2] == 0).all() and (images[:, 5] == 0).all()
    assert (nfe <= 5).all() and (nfe >= 1).all()


def test_forced_tokens_cost_no_forward():
    # Every position but the first is forced: all drafts stand, so a window holds W commits.
    model = TableModel(vocab_size=3, forced=[False] + [True] * 8, stride=9)
    _, nfe = run(model, decoder(window=4, model=model), [1, 2, 3], 3)
    assert nfe.tolist() == [2, 2, 2]


def test_each_step_commits_between_one_code_and_the_window():
    the_decoder, state = started(("independent", "uniform", "none"), window=3)
    while (state.n_B < 6).any():
        new = decode_step(the_decoder, state, MODEL.window_logits(state, 3).float())
        gained = new.n_B - state.n_B
        assert ((gained >= 1) | (state.n_B == 6)).all() and (gained <= 3).all()
        assert torch.equal(new.tokens_BS[:, :1], state.tokens_BS[:, :1])
        state = new


def test_an_idle_row_does_nothing():
    the_decoder, state = started(("coupled", "above", "adaptive"), window=3)
    state.n_B[1] = 6
    new = decode_step(the_decoder, state, MODEL.window_logits(state, 3).float())
    assert new.n_B[1] == 6 and new.step_B[1] == 0 and not new.bad_B[1]
    assert torch.equal(new.tokens_BS[1], state.tokens_BS[1])
    assert new.tally_BT[1].sum() == 0 and new.commits_BN[1].sum() == 0


@pytest.mark.parametrize("values", [["nan"], ["inf"], ["-inf"], ["inf", "-inf"], ["1e30", "nan"]])
def test_logits_that_are_not_finite_fail_their_row_alone(values):
    the_decoder, state = started(("coupled", "above", "adaptive"), window=3)
    logits = MODEL.window_logits(state, 3).float()
    logits[1] = 3e38  # large, and finite
    clean = decode_step(the_decoder, state, logits)
    for column, value in enumerate(values):
        logits[2, column, 0] = float(value)
    dirty = decode_step(the_decoder, state, logits)
    assert dirty.bad_B.tolist() == [False, False, True, False]
    for a, b in zip(clean.tensors(), dirty.tensors(), strict=True):
        assert torch.equal(a[[0, 1, 3]], b[[0, 1, 3]])


def test_the_stored_probs_is_the_probs_of_the_draw():
    """Slots with equal stored distributions: their drafts, taken together, must follow that distribution."""
    for drafter in ("independent", "coupled", "gumbel"):
        the_decoder, state = started((drafter, "above", "published"), window=4, batch_size=8_000)
        for _ in range(2):
            state = decode_step(the_decoder, state, MODEL.window_logits(state, 4).float())
        distributions, group = state.draft_probs_BWV[:, 0].unique(dim=0, return_inverse=True)
        for number, distribution in enumerate(distributions):
            drafts = state.draft_BW[(group == number) & (state.n_B < 6), 0]
            if len(drafts) > 500:
                seen = torch.bincount(drafts, minlength=3) / len(drafts)
                assert (seen - distribution).abs().max() < 5 * (0.25 / len(drafts)) ** 0.5


def test_greedy_decoding_is_the_argmax_path():
    the_decoder = decoder(
        "independent", window=4, sampling=SamplingConfig(temperature=0), model=MODEL
    )
    images, _ = run(MODEL, the_decoder, [1, 2], 2)
    wanted = torch.zeros(1, 6, dtype=torch.int64)
    for i in range(6):
        if not MODEL.forced[i]:
            wanted[0, i] = MODEL.logits(wanted, torch.tensor([i])).argmax()
    assert torch.equal(images, wanted.expand(2, -1))


def accepted_by_a_loop(state, target_probs_BWV, b, n_live):
    """How many drafts of row b stand: tested one by one, with noise made for this window alone."""
    noise = Noise(
        state.key_B, state.n_B[:, None] + torch.arange(target_probs_BWV.shape[1]), state.step_B + 1
    )
    for w in range(n_live):
        draft = state.draft_BW[b, w]
        if (
            noise.uniform_BW(Purpose.ACCEPT)[b, w] * state.draft_probs_BWV[b, w, draft]
            >= target_probs_BWV[b, w, draft]
        ):
            return w
    return n_live


@pytest.mark.parametrize("drafter", ["independent", "coupled"])
@pytest.mark.parametrize("prediction", ["none", "momentum", "adaptive"])
def test_the_tally_counts_what_happened(drafter, prediction):
    """All eight sums of every row, counted once more by a loop over positions that remembers every distribution."""
    batch_size, window, length = 12, 5, len(LONG_MODEL.forced)
    the_decoder, state = started((drafter, "above", prediction), window, batch_size, LONG_MODEL)
    wanted = torch.zeros(batch_size, len(Tally), dtype=torch.float64)
    seen = [
        [[] for _ in range(length + window)] for _ in range(batch_size)
    ]  # the distributions of each position, newest first
    while (state.n_B < length).any():
        logits = LONG_MODEL.window_logits(state, window).float()
        new = decode_step(the_decoder, state, logits)
        p = to_probs(
            logits,
            the_decoder.layout.forced_at(state.n_B[:, None] + torch.arange(window)),
            the_decoder.sampling,
        )
        for b in (state.n_B < length).nonzero().flatten().tolist():
            first, n_new = int(state.n_B[b]), int(new.n_B[b] - state.n_B[b])
            n_live = min(window - 1, length - first)
            accepted = accepted_by_a_loop(state, p, b, n_live)
            assert n_new == min(accepted + 1, length - first)
            for w in range(window):
                past = seen[b][first + w]
                if first + w < length and not LONG_MODEL.forced[first + w]:
                    wanted[b, Tally.DRAFTED] += w <= accepted and w < n_live
                    wanted[b, Tally.ACCEPTED] += w < accepted
                    if w < n_new and past and the_decoder.predicts:
                        code = new.tokens_BS[b, first + w]
                        wanted[b, Tally.LOOKED] += 1
                        wanted[b, Tally.GREW] += p[b, w, code] > past[0][code]
                        wanted[b, Tally.TV_PLAIN] += (p[b, w] - past[0]).abs().sum() / 2
                        wanted[b, Tally.TV_PREDICTED] += (
                            p[b, w] - state.draft_probs_BWV[b, w]
                        ).abs().sum() / 2
                        rose = (
                            past[0] > past[1] if len(past) > 1 else torch.zeros(3, dtype=torch.bool)
                        )
                        wanted[b, Tally.ROSE] += rose.sum()
                        wanted[b, Tally.ROSE_AGAIN] += (rose & (p[b, w] > past[0])).sum()
                past.insert(0, p[b, w])
        state = new
    torch.testing.assert_close(state.tally_BT, wanted, atol=1e-5, rtol=0)
    assert torch.equal(state.commits_BN.sum(-1), state.step_B)
    assert torch.equal(
        (state.commits_BN * torch.arange(window + 1)).sum(-1), torch.full((batch_size,), length - 1)
    )
    counted = wanted.sum(0)[: len(Tally) if the_decoder.predicts else 2]
    assert (counted > 0).all() and len(counted.unique()) == len(
        counted
    )  # no two of them could be taken for each other


@pytest.mark.parametrize("drafter", ["independent", "gumbel"])
@pytest.mark.parametrize("prediction", ["none", "adaptive"])
def test_a_draft_is_drawn_from_its_stored_probs_by_the_noise_of_its_position(drafter, prediction):
    the_decoder, state = started((drafter, "uniform", prediction), window=4, batch_size=16)
    while (state.n_B < 6).any():
        state = decode_step(the_decoder, state, MODEL.window_logits(state, 4).float())
        pos = state.n_B[:, None] + torch.arange(4)
        noise = Noise(state.key_B, pos, state.step_B)
        assert torch.equal(
            state.draft_BW,
            the_decoder.drafter(
                state.draft_probs_BWV, state.draft_probs_BWV, state.draft_BW, pos < 0, noise
            ),
        )
        assert (
            state.draft_probs_BWV[the_decoder.layout.forced_at(pos)]
            == torch.tensor([1.0, 0.0, 0.0])
        ).all()
        assert (state.draft_BW[the_decoder.layout.forced_at(pos)] == 0).all()


def test_a_row_is_clean_after_another_image_used_it():
    seeds = [3, 4, 5, 6]
    alone = [
        run(MODEL, decoder("coupled", "above", "adaptive", 4, model=MODEL), [seed], 1)[0]
        for seed in seeds
    ]
    one_row, _ = run(MODEL, decoder("coupled", "above", "adaptive", 4, model=MODEL), seeds, 1)
    assert torch.equal(torch.cat(alone), one_row)


def test_the_first_drafts_come_from_what_the_fresh_rule_says():
    _, state = started(("independent", "repeat", "none"), window=2, batch_size=50)
    assert torch.equal(state.draft_BW[:, 0], state.tokens_BS[:, 0])
    _, state = started(("independent", "left", "none"), window=2, batch_size=1)
    first = (
        MODEL.logits(torch.zeros(1, 6, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
        .div(0.9)
        .softmax(-1)
    )
    assert torch.allclose(state.draft_probs_BWV[0, 0].double(), first[0], atol=1e-6)


def test_the_empty_residual_draws_from_the_probs():
    # q equal to p everywhere: nothing is ever rejected, and nothing is NaN.
    flat = replace(MODEL, sharpness=0.0)
    images, nfe = run(
        flat, decoder("independent", "uniform", "none", 4, model=flat), list(range(300)), 300
    )
    assert (nfe == 2).all()
    assert 0.25 < (images[:, 0] == 0).float().mean() < 0.42
