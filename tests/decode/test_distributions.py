"""Sparse distributions against dense ones: the same probabilities, the same tokens, less memory."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sjdvp import rng
from sjdvp.config import LOSSLESS, DecoderConfig, SamplingConfig, from_table
from sjdvp.decode.decoder import make_decoder
from sjdvp.decode.distributions import Dense, Sparse
from sjdvp.decode.verify import nearest
from sjdvp.interfaces import ImageLayout
from sjdvp.presets import GREEDY, PRESETS
from sjdvp.rng import Noise
from tests.decode.helpers import MarkovModel, codebook, run

V, K, N_SUPPORT = 30, 6, 9
DENSE, SPARSE = Dense(V, V), Sparse(V, N_SUPPORT)
NAMES = [name for name in PRESETS if name not in GREEDY and LOSSLESS[PRESETS[name]["verifier"]]]

seeds = st.integers(0, 2**32)
samplings = st.builds(
    SamplingConfig,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_k=st.integers(1, K),
    top_p=st.sampled_from([0.31, 0.62, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.27, 1.0]),
)


def both(seed: int, config: SamplingConfig):
    """Dense and sparse distributions of the same logits [2, 5], some forced, and ticks."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 5, V, generator=generator, dtype=torch.float64)
    if config.top_p == 1:  # of tokens that tie at the edge of top-p, any may be cut
        tied = torch.randint(0, V, (2, 5, 2), generator=generator)
        kth = logits.sort(-1).values[..., -config.top_k, None]
        logits.scatter_(-1, tied, kth.expand(-1, -1, 2))
    forced = torch.rand(2, 5, generator=generator) < 0.2
    ticks = 2 * torch.randint(0, 2**23, (2, 5), generator=generator) + 1
    return *(form.to_probs(logits, forced, config) for form in (DENSE, SPARSE)), ticks


@pytest.mark.process
@given(seeds, samplings)
@settings(max_examples=150, deadline=None)
def test_both_forms_hold_the_same_probabilities(seed, config):
    dense, sparse, _ = both(seed, config)
    assert not SPARSE.unusable(dense, sparse).any()
    assert torch.allclose(SPARSE.dense(sparse), dense, rtol=1e-12, atol=0)
    every = torch.arange(V).expand(2, 5, -1)
    assert torch.equal(SPARSE.at(sparse, every), SPARSE.dense(sparse))


@pytest.mark.process
@given(seeds, seeds, samplings)
@settings(max_examples=150, deadline=None)
def test_both_forms_sample_the_same_tokens(seed, other_seed, config):
    dense_p, sparse_p, ticks = both(seed, config)
    dense_q, sparse_q, _ = both(other_seed, config)
    assert torch.equal(DENSE.sample(dense_p, ticks), SPARSE.sample(sparse_p, ticks))
    has_q = (ticks & 2 > 0)[..., None]
    for q, other in ((dense_q, sparse_q), (uniform(DENSE), uniform(SPARSE)), (dense_p, sparse_p)):
        assert torch.equal(
            DENSE.sample_residual(dense_p, q, has_q, ticks),
            SPARSE.sample_residual(sparse_p, other, has_q, ticks),
        )
    noise = Noise(rng.position_keys(rng.keys([1, 2]), torch.arange(5).expand(2, -1)), ticks[:, 0])
    assert torch.equal(DENSE.gumbel_sample(dense_p, noise), SPARSE.gumbel_sample(sparse_p, noise))


@given(seeds, samplings, st.integers(1, N_SUPPORT))
@settings(max_examples=50, deadline=None)
def test_both_forms_change_the_same_tokens(seed, config, n):
    dense, sparse, _ = both(seed, config)
    top = SPARSE.top(sparse, n)
    value = SPARSE.at(sparse, top)
    assert torch.allclose(value, DENSE.at(dense, DENSE.top(dense, n)), rtol=1e-12, atol=0)
    changed = SPARSE.put(sparse, top, 2 * value)
    assert torch.allclose(SPARSE.dense(changed), DENSE.put(dense, top, 2 * value), rtol=1e-12)


FORCED = torch.tensor([[False, True, False, False, True], [False] * 5])


def uniform(form):
    return form.uniform(FORCED, torch.float64)


@given(st.lists(st.integers(0, 2**23 - 1), min_size=10, max_size=10))
@settings(max_examples=100, deadline=None)
def test_first_distributions_are_the_same(ticks):
    ticks = 2 * torch.tensor(ticks).view(2, 5) + 1
    assert torch.equal(SPARSE.dense(uniform(SPARSE)), uniform(DENSE))
    assert torch.equal(SPARSE.sample(uniform(SPARSE), ticks), DENSE.sample(uniform(DENSE), ticks))
    token = ticks % V
    one_hot, other = DENSE.one_hot(token, torch.float64), SPARSE.one_hot(token, torch.float64)
    assert torch.equal(SPARSE.dense(other), one_hot)
    assert torch.equal(SPARSE.sample(other, ticks), token)
    assert torch.equal(
        SPARSE.dense(SPARSE.one_hot_where(FORCED, other)), DENSE.one_hot_where(FORCED, one_hot)
    )


@pytest.mark.parametrize("top_p", [1.0, 0.5])
@pytest.mark.parametrize(("n_tied", "wide"), [(N_SUPPORT - K, False), (N_SUPPORT - K + 1, True)])
def test_more_ties_than_a_sparse_distribution_holds_are_found(n_tied, wide, top_p):
    logits = torch.arange(V).flip(0).expand(2, 3, V).float().clone()
    logits[1, 1, K : K + n_tied] = logits[1, 1, K - 1]
    config = SamplingConfig(top_k=K, top_p=top_p)
    probs = SPARSE.to_probs(logits, torch.zeros(2, 3, dtype=torch.bool), config)
    assert (SPARSE.unusable(logits, probs) != 0).tolist() == [False, wide]
    assert (SPARSE.sample(probs, torch.ones(2, 3, dtype=torch.int64)) < V).all()


MODEL = MarkovModel(V, forced=([False] * 5 + [True]) * 4, stride=6, sharpness=1.5)


@pytest.mark.process
@pytest.mark.parametrize(
    ("window", "batch_size", "warped"),
    [
        (2, 5, {}),
        (7, 3, {"top_p": 0.8}),
        (7, 5, {"min_p": 0.1}),
        (30, 2, {"temperature": 1.3, "top_p": 0.9}),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_sparse_is_dense_token_for_token(name, window, batch_size, warped):
    config = from_table(DecoderConfig, {**PRESETS[name], "preset": name, "window": window})
    # No more than the support: which tokens of probability zero are compared may differ.
    config = replace(config, prediction=replace(config.prediction, top_k=3))
    sampling = SamplingConfig(**{"top_k": K, **warped})
    decoded = [
        run(MODEL, decoder, list(range(5)), batch_size, torch.float64)
        for form in (DENSE, SPARSE)
        for decoder in [make_decoder(config, sampling, MODEL.layout, codebook, nearest, form)]
    ]
    (tokens, nfe), (sparse_tokens, sparse_nfe) = decoded
    assert torch.equal(tokens, sparse_tokens)
    # Gumbel-max drafts from a uniform distribution differ, which no token of same-noise shows.
    assert config.verifier == "same-noise" or torch.equal(nfe, sparse_nfe)


@pytest.mark.parametrize(
    ("vocab_size", "changes", "form"),
    [
        (131_072, {}, Sparse(131_072, 4048)),
        (131_072, {"verifier": "same-noise"}, Sparse(131_072, 4048)),
        (131_072, {"verifier": "lantern"}, Dense(131_072, 131_072)),
        (16_384, {}, Dense(16_384, 16_384)),
        (16_384, {"verifier": "same-noise"}, Dense(16_384, 4048)),
    ],
)
def test_the_form_is_the_one_that_pays(vocab_size, changes, form):
    config = DecoderConfig(window=4, **changes)
    layout = ImageLayout(2, 3, vocab_size)
    decoder = make_decoder(
        config, SamplingConfig(top_k=2000), layout, codebook, lambda codebook, k: codebook
    )
    assert decoder.form == form
    for sampling in (SamplingConfig(), SamplingConfig(top_k=2000, temperature=0)):
        same = make_decoder(config, sampling, layout, codebook, lambda codebook, k: codebook)
        assert isinstance(same.form, Dense)


def test_a_slot_takes_a_tenth_of_the_memory():
    V, layout = 131_072, ImageLayout(48, 48, 131_072)
    config = from_table(DecoderConfig, {**PRESETS["best"], "preset": "best", "window": 32})
    assert config.prediction.history == 4

    def slot_bytes(form):
        decoder = make_decoder(config, SamplingConfig(top_k=2000), layout, codebook, nearest, form)
        state = decoder.idle_state(1, torch.float32, torch.device("meta"))
        return sum(tensor.untyped_storage().nbytes() for tensor in state.tensors())

    assert 10 * slot_bytes(None) <= slot_bytes(Dense(V, V))
