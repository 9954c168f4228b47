"""The decoding step: shapes, forced tokens, ends of images, rows that fail."""

from dataclasses import replace

import pytest
import torch

from sjdvp import rng
from sjdvp.config import DecoderConfig, SamplingConfig
from sjdvp.decode.decoder import make_decoder
from sjdvp.decode.distributions import Dense, Sparse
from sjdvp.decode.step import admit, decode_step
from sjdvp.decode.verify import nearest
from sjdvp.interfaces import ImageLayout
from sjdvp.rng import Noise
from sjdvp.sampling import MOST_TIES
from tests.decode.helpers import (
    COMBINATIONS,
    SPARSE,
    TOP_3,
    TableModel,
    codebook,
    decoder,
    run,
)

MODEL = TableModel(vocab_size=3, forced=[False, False, True] * 2, stride=3, sharpness=2.0)


def started(parts, window, batch_size=4, model=MODEL, **more):
    the_decoder = decoder(*parts, window=window, model=model, **more)
    state = the_decoder.idle_state(batch_size, torch.float32, torch.device("cpu"))
    first = model.logits(
        torch.zeros(batch_size, 6, dtype=torch.int64), torch.zeros(batch_size, dtype=torch.int64)
    ).float()
    admit(the_decoder, state, list(range(batch_size)), first, rng.keys(list(range(batch_size))))
    return the_decoder, state


FORMS = {
    "dense": {"model": MODEL},
    "sparse": {"model": replace(MODEL, vocab_size=4), "sampling": TOP_3, "form": SPARSE},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parts", COMBINATIONS)
def test_a_step_keeps_every_shape_and_dtype(parts, form):
    the_decoder, state = started(parts, window=4, **FORMS[form])
    logits = FORMS[form]["model"].window_logits(state, 4).float()
    new = decode_step(the_decoder, state, logits)
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
    # Every position but the first is forced: all drafts are accepted, so a window holds W commits.
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
    assert new.n_B[1] == 6 and not new.bad_B[1]
    assert torch.equal(new.tokens_BS[1, :6], state.tokens_BS[1, :6])
    assert torch.equal(new.accept_map_BS[1, :6], state.accept_map_BS[1, :6])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("values", [["nan"], ["inf"], ["-inf"], ["inf", "-inf"], ["1e30", "nan"]])
def test_logits_that_are_not_finite_fail_their_row_alone(values, form):
    the_decoder, state = started(("coupled", "above", "adaptive"), window=3, **FORMS[form])
    logits = FORMS[form]["model"].window_logits(state, 3).float()
    logits[1, :, :3] = 3e38  # large, and finite
    clean = decode_step(the_decoder, state, logits)
    for column, value in enumerate(values):
        logits[2, column, 0] = float(value)
    dirty = decode_step(the_decoder, state, logits)
    assert dirty.bad_B.tolist() == [False, False, True, False]
    for a, b in zip(clean.tensors(), dirty.tensors(), strict=True):
        assert torch.equal(a[[0, 1, 3]], b[[0, 1, 3]])


@pytest.mark.parametrize("form", [Dense(4000, 10 + MOST_TIES), Sparse(4000, 10 + MOST_TIES)])
@pytest.mark.parametrize(("n_tied", "bad"), [(MOST_TIES, False), (MOST_TIES + 1, True)])
def test_tokens_that_would_get_no_noise_fail_their_row_alone(n_tied, bad, form):
    """More tokens tie with the k-th than same-noise, or a sparse distribution, allows."""
    K, V = 10, 4000
    config = DecoderConfig(verifier="same-noise", drafter="gumbel", init="uniform", window=3)
    layout = ImageLayout(2, 3, V)
    the_decoder = make_decoder(config, SamplingConfig(top_k=K), layout, codebook, nearest, form)
    logits = torch.arange(V).flip(0).expand(2, 3, V).float().clone()
    state = the_decoder.idle_state(2, torch.float32, torch.device("cpu"))
    admit(the_decoder, state, [0, 1], logits[:, 0], rng.keys([0, 1]))
    logits[1, 1, K : K + n_tied] = logits[1, 1, K - 1]
    assert decode_step(the_decoder, state, logits).bad_B.tolist() == [False, bad]
    admit(the_decoder, state, [0, 1], logits[:, 1], rng.keys([0, 1]))
    assert state.bad_B.tolist() == [False, bad]


def test_the_stored_probs_is_the_probs_of_the_draw():
    """Slots with equal stored distributions: their drafts, taken together, must follow that
    distribution.
    """
    for drafter in ("independent", "coupled", "gumbel"):
        the_decoder, state = started((drafter, "above", "published"), window=4, batch_size=8_000)
        for _ in range(2):
            state = decode_step(the_decoder, state, MODEL.window_logits(state, 4).float())
        distributions, group = state.draft_probs_BWY[:, 0].unique(dim=0, return_inverse=True)
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


@pytest.mark.parametrize("drafter", ["independent", "gumbel"])
@pytest.mark.parametrize("prediction", ["none", "adaptive"])
def test_a_draft_is_sampled_from_its_stored_probs_by_the_noise_of_its_position(drafter, prediction):
    the_decoder, state = started((drafter, "uniform", prediction), window=4, batch_size=16)
    while (state.n_B < 6).any():
        state = decode_step(the_decoder, state, MODEL.window_logits(state, 4).float())
        pos = state.n_B[:, None] + torch.arange(4)
        noise = Noise(rng.position_keys(state.key_B, pos), state.nfe_B)
        assert torch.equal(
            state.draft_BW,
            the_decoder.drafter(
                state.draft_probs_BWY, state.draft_probs_BWY, state.draft_BW, pos < 0, noise
            ),
        )
        assert (
            state.draft_probs_BWY[the_decoder.layout.forced_at(pos)]
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
    assert torch.allclose(state.draft_probs_BWY[0, 0].double(), first[0], atol=1e-6)


def test_the_empty_residual_samples_from_the_probs():
    # q equal to p everywhere: nothing is ever rejected, and nothing is NaN.
    flat = replace(MODEL, sharpness=0.0)
    images, nfe = run(
        flat, decoder("independent", "uniform", "none", 4, model=flat), list(range(300)), 300
    )
    assert (nfe == 2).all()
    assert 0.25 < (images[:, 0] == 0).float().mean() < 0.42
