"""The product's promise: whatever is drafted, the images follow exactly the model's distribution.
Shown on a model that can be enumerated.

False-alarm rate: each p-value is compared with 1e-4; seeds are fixed, so a pass is a pass for ever.
"""

from dataclasses import replace

import pytest
import torch

from sjdvp.config import LOSSLESS, PredictionConfig, SamplingConfig
from sjdvp.decode.step import decode_step
from tests.decode.helpers import (
    COMBINATIONS,
    SAMPLING,
    SMALL,
    SPARSE,
    TOP_3,
    WIDE,
    GuidedModel,
    TableModel,
    decoder,
    p_of,
    p_value,
    run,
)

ALARM = 1e-4
NUMBERED = list(enumerate(COMBINATIONS))


@pytest.mark.process
@pytest.mark.parametrize(("number", "parts"), NUMBERED)
def test_every_lossless_combination_samples_the_models_probs(number, parts):
    window = (2, 3, 5)[number % 3]
    assert p_value(SMALL, decoder(*parts, window=window), n=4_000, seed=number) > ALARM


def sparse(*parts, window, verifier="rejection"):
    return decoder(*parts, window, verifier, TOP_3, WIDE, SPARSE)


@pytest.mark.process
@pytest.mark.parametrize(("number", "parts"), NUMBERED)
def test_every_lossless_combination_draws_the_models_probs_when_sparse(number, parts):
    window = (2, 3, 5)[number % 3]
    assert p_value(WIDE, sparse(*parts, window=window), n=4_000, seed=number) > ALARM


@pytest.mark.slow
@pytest.mark.parametrize("window", [2, 3, 5])
@pytest.mark.parametrize("verifier", ["rejection", "same-noise"])
@pytest.mark.parametrize("parts", COMBINATIONS)
def test_every_lossless_combination_samples_the_models_probs_100_000_times(parts, verifier, window):
    assert (
        p_value(SMALL, decoder(*parts, window=window, verifier=verifier), n=100_000, seed=window)
        > ALARM
    )


@pytest.mark.slow
@pytest.mark.parametrize("window", [2, 3, 5])
@pytest.mark.parametrize("verifier", ["rejection", "same-noise"])
@pytest.mark.parametrize("parts", COMBINATIONS)
def test_every_lossless_combination_draws_the_models_probs_when_sparse_100_000_times(
    parts, verifier, window
):
    tested = sparse(*parts, window=window, verifier=verifier)
    assert p_value(WIDE, tested, n=100_000, seed=window) > ALARM


@pytest.mark.process
@pytest.mark.parametrize("verifier", ["rejection", "same-noise"])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(temperature=1.3, top_k=2),
        SamplingConfig(top_p=0.8),
        SamplingConfig(min_p=0.3),
    ],
)
def test_warped_distributions_are_sampled_exactly(verifier, sampling):
    assert (
        p_value(
            SMALL, decoder("coupled", "above", "published", 3, verifier, sampling), n=20_000, seed=7
        )
        > ALARM
    )


SCALES = (0.0, 1.0, 3.0)


@pytest.mark.process
@pytest.mark.parametrize("interval", [-1, 1])
@pytest.mark.parametrize("verifier", ["rejection", "same-noise"])
def test_rows_of_a_batch_with_different_guidance_are_each_sampled_exactly(verifier, interval):
    model = GuidedModel(SMALL, replace(SMALL, seed=8), SCALES, interval)
    parts = decoder("coupled", "above", "published", 3, verifier)
    images, _ = run(model, parts, list(range(30_000)), 30_000)
    for number in range(len(SCALES)):
        alone = model.of_scale(number)
        assert p_of(alone, images[number :: len(SCALES)], alone.joint(parts.sampling)) > ALARM
    # The test can fail: the images of one scale are not distributed as those of another.
    assert p_of(SMALL, images[2::3], SMALL.joint(parts.sampling)) < ALARM


@pytest.mark.process
def test_plain_sampling_follows_the_models_probs():
    assert (
        p_value(SMALL, decoder("gumbel", window=1, verifier="same-noise"), n=50_000, seed=3) > ALARM
    )


# --- negative controls: the test must be able to fail ---------------------------------------------


def store_the_plain_probs(decoder, state, logits):
    """The published slip: drafts come from the predicted distribution p', but p is stored beside
    them.
    """
    predicted = decode_step(decoder, state, logits)
    plain = decode_step(replace(decoder, prediction=PredictionConfig()), state, logits)
    return replace(predicted, draft_probs_BWY=plain.draft_probs_BWY)


def keep_the_old_probs(decoder, state, logits):
    """The other slip: with a coupled drafter, a kept draft keeps the distribution it was first
    sampled from.
    """
    new = decode_step(decoder, state, logits)
    moved = (new.n_B - state.n_B)[:, None] + torch.arange(decoder.window)
    inside = moved < decoder.window - 1
    source = moved.clamp(max=decoder.window - 1)
    kept = inside & (new.draft_BW == state.draft_BW.gather(1, source))
    old_probs = state.draft_probs_BWY.gather(1, source[..., None].expand_as(state.draft_probs_BWY))
    return replace(
        new, draft_probs_BWY=torch.where(kept[..., None], old_probs, new.draft_probs_BWY)
    )


SLIPS = [
    ("independent", "published", store_the_plain_probs, (SAMPLING, SMALL, None)),
    ("coupled", "none", keep_the_old_probs, (SAMPLING, SMALL, None)),
    ("coupled", "none", keep_the_old_probs, (TOP_3, WIDE, SPARSE)),
]


@pytest.mark.process
@pytest.mark.parametrize(("drafter", "prediction", "slip", "stored"), SLIPS)
def test_a_stored_probs_that_is_not_the_probs_of_the_draw_is_caught(
    drafter, prediction, slip, stored
):
    sampling, model, form = stored
    # Distributions that move more, so that the bias shows in fewer images.
    sharp = replace(model, sharpness=2.5)
    wrong = decoder(drafter, "uniform", prediction, 5, "rejection", sampling, sharp, form)
    assert p_value(sharp, wrong, n=30_000, seed=1, step=slip) < ALARM
    assert p_value(sharp, wrong, n=30_000, seed=1) > ALARM


@pytest.mark.process
@pytest.mark.parametrize("verifier", LOSSLESS)
def test_the_table_of_lossless_verifiers_is_right(verifier):
    tested = decoder("independent", "uniform", "none", 3, verifier)
    assert (p_value(SMALL, tested, n=30_000, seed=2) > ALARM) == LOSSLESS[verifier]


# --- token for token ------------------------------------------------------------------------------


LONG = TableModel(
    vocab_size=3, forced=[False, False, False, True] * 2, stride=4, sharpness=2.0, seed=5
)


FORMS = {"dense": (LONG, SAMPLING, None), "sparse": (replace(LONG, vocab_size=4), TOP_3, SPARSE)}


@pytest.fixture(scope="module")
def plain_samples():
    """Images decoded token by token, in the dense form."""
    samples = {}
    for name, (model, sampling, _) in FORMS.items():
        plain = decoder("gumbel", "uniform", "none", 1, "same-noise", sampling, model)
        samples[name], nfe = run(model, plain, list(range(40, 47)), 1, torch.float64)
        assert set(nfe.tolist()) == {LONG.layout.length - 1}
    return samples


@pytest.mark.parametrize("form", ["dense", pytest.param("sparse", marks=pytest.mark.process)])
@pytest.mark.parametrize(("number", "parts"), NUMBERED)
def test_same_noise_is_the_plain_sample_token_for_token(number, parts, form, plain_samples):
    window, batch_size = (1, 2, 5, 12)[number % 4], (1, 3, 7)[number % 3]
    model, sampling, sparse_form = FORMS[form]
    tested = decoder(*parts, window, "same-noise", sampling, model, sparse_form)
    images, _ = run(model, tested, list(range(40, 47)), batch_size, torch.float64)
    assert torch.equal(images, plain_samples[form])


@pytest.mark.process
@pytest.mark.parametrize("parts", COMBINATIONS)
def test_images_do_not_depend_on_rows_or_admission_order(parts):
    seeds = list(range(7))
    together, nfe = run(LONG, decoder(*parts, window=4, model=LONG), seeds, 7)
    backwards, nfe_backwards = run(LONG, decoder(*parts, window=4, model=LONG), seeds[::-1], 2)
    assert torch.equal(backwards.flip(0), together)
    assert torch.equal(nfe_backwards.flip(0), nfe)
