"""Logits to distributions, and samples from distributions, against slow and obvious versions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sjdvp import rng
from sjdvp.config import SamplingConfig
from sjdvp.rng import Noise, Purpose
from sjdvp.sampling import (
    apply_cfg,
    gumbel_sample,
    n_support,
    residual,
    running_sum,
    sample,
    to_probs,
)

NEVER = torch.zeros(1, 1, dtype=torch.bool)


def probs_of(logits: list[float], sampling: SamplingConfig, forced: bool = False) -> torch.Tensor:
    return to_probs(torch.tensor(logits).view(1, 1, -1), NEVER | forced, sampling)[0, 0]


def slow_probs(logits: list[float], s: SamplingConfig) -> torch.Tensor:
    x = {token: logit / s.temperature for token, logit in enumerate(logits)}
    if s.top_k:
        kth = sorted(x.values(), reverse=True)[min(s.top_k, len(x)) - 1]
        x = {token: logit for token, logit in x.items() if logit >= kth}
    total = sum(math.exp(v) for v in x.values())
    kept, before = {}, 0.0
    for token, logit in sorted(x.items(), key=lambda item: -item[1]):
        if before < s.top_p:
            kept[token] = logit
        before += math.exp(logit) / total
    most = max(kept.values())
    kept = {code: v for code, v in kept.items() if math.exp(v - most) >= s.min_p}
    total = sum(math.exp(v) for v in kept.values())
    return torch.tensor(
        [math.exp(kept[token]) / total if token in kept else 0.0 for token in range(len(logits))]
    )


@given(
    logits=st.lists(st.integers(-40, 40), min_size=2, max_size=12, unique=True),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.31, 0.62, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.27, 1.0]),
)
@settings(max_examples=200, deadline=None)
def test_distributions_agree_with_the_obvious_version(logits, temperature, top_k, top_p, min_p):
    logits = [x / 10 for x in logits]
    sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert torch.allclose(probs_of(logits, sampling), slow_probs(logits, sampling), atol=2e-6)


def test_top_k_keeps_every_tie():
    assert probs_of([1.0, 2.0, 2.0, 0.0], SamplingConfig(top_k=1)).tolist() == [0, 0.5, 0.5, 0]


def test_greedy_is_one_hot_and_forced_positions_are_one_hot_at_code_0():
    assert probs_of([0.0, 3.0, 1.0], SamplingConfig(temperature=0)).tolist() == [0, 1, 0]
    assert probs_of([0.0, 3.0, 1.0], SamplingConfig(), forced=True).tolist() == [1, 0, 0]


def test_guidance():
    cond, uncond = torch.full((2, 1, 3), 3.1), torch.full((2, 1, 3), 1.1)
    guided = apply_cfg(cond, uncond, torch.tensor([[2.5], [1.0]]))
    assert guided[0].allclose(torch.tensor(6.1)) and torch.equal(guided[1], cond[1])


@pytest.mark.process
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40).filter(any), st.integers(0, 2**23 - 1))
@settings(max_examples=300, deadline=None)
def test_draw_never_gives_a_code_of_weight_zero(weights, tick):
    probs = torch.tensor(weights, dtype=torch.float32)
    assert weights[int(sample(probs / probs.sum(), torch.tensor(2 * tick + 1)))] > 0


@pytest.mark.parametrize("ticks", [1, 2**24 - 1])
def test_sample_at_the_ends(ticks):
    weights = torch.tensor([0.0, 1e-8, 0.3, 0.7, 0.0])
    assert sample(weights, torch.tensor(ticks)) in (1, 2, 3)


@pytest.mark.parametrize("how", ["sample", "gumbel_sample", "gumbel_sample of the support"])
def test_samples_follow_the_probabilities(how):
    n = 100_000
    probs = torch.tensor([0.5, 0.0, 0.1, 0.4]).expand(n, 1, -1)
    zero = torch.zeros(n, dtype=torch.int64)
    noise = Noise(rng.position_keys(rng.keys(list(range(n))), zero[:, None]), zero)
    if how == "sample":
        tokens = sample(probs, noise.ticks_BW(Purpose.RESAMPLE))
    else:
        tokens = gumbel_sample(probs, noise, 3 if how.endswith("support") else 4)
    counts = torch.bincount(tokens[:, 0], minlength=4)
    assert counts[1] == 0
    assert chisquare(counts[[0, 2, 3]].numpy(), [50_000, 10_000, 40_000]).pvalue > 1e-4


def test_noise_for_the_support_alone_gives_the_same_tokens():
    logits = torch.randn(4, 6, 5000, generator=torch.Generator().manual_seed(1))
    sampling = SamplingConfig(top_k=100)
    probs = to_probs(logits.round(decimals=1), torch.zeros(4, 6, dtype=torch.bool), sampling)
    pos = torch.arange(6).expand(4, -1)
    noise = Noise(rng.position_keys(rng.keys([1, 2, 3, 4]), pos), torch.zeros(4, dtype=torch.int64))
    support = n_support(sampling, 5000)
    assert 100 < (probs > 0).sum(-1).max() <= support < 5000  # the rounded logits tie
    assert torch.equal(gumbel_sample(probs, noise, support), gumbel_sample(probs, noise, 5000))


def test_the_sum_of_a_draw_does_not_depend_on_its_order():
    probs = torch.randn(1, 20_000, generator=torch.Generator().manual_seed(1)).softmax(-1)
    total, backwards = running_sum(probs), running_sum(probs.flip(-1))
    assert torch.equal(total[:, -1:] - total[:, :-1], backwards.flip(-1)[:, 1:])
    assert abs(int(total[0, -1]) - 2**38) < 20_000 + 2**38 * 1e-6


def test_residual_is_the_positive_part_or_the_probs_itself_when_nothing_is_left():
    p = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.25, 0.75]])
    q = torch.tensor([[0.25, 0.75], [0.25, 0.75], [0.0, 1.0]])
    has_q = torch.tensor([[True], [True], [False]])
    assert residual(p, q, has_q).tolist() == [[0.25, 0], [0.25, 0.75], [0.25, 0.75]]
