"""Verification prediction against a slow version written from its formula, and its bookkeeping."""

import itertools
import math

import pytest
import torch

from sjdvp.config import PredictionConfig
from sjdvp.decode.prediction import (
    Trend,
    momentum,
    n_compared,
    predictions,
    published,
    rising,
    scaled,
)

B, W, T, L = 3, 4, 6, 4


@pytest.fixture
def distributions():
    generator = torch.Generator().manual_seed(1)
    p = torch.rand(B, W, T, generator=generator, dtype=torch.float64) / T
    past = torch.rand(B, L, W, T, generator=generator, dtype=torch.float64) / T
    past[:, 0] = torch.where(torch.rand(B, W, T, generator=generator) < 0.5, p * 0.7, past[:, 0])
    past[:, 1] = torch.where(
        torch.rand(B, W, T, generator=generator) < 0.7, past[:, 0] * 0.7, past[:, 1]
    )
    age = torch.tensor([[0, 1, 2, 3], [4, 4, 4, 4], [2, 3, 4, 0]])
    return p, past, age


def newest(p, past):
    return torch.cat([p[:, None], past], 1)


def slow(p, past, age, c, rule):
    result = torch.empty_like(p)
    for b in range(B):
        for w in range(W):
            n = int(age[b, w])
            weights = [c.decay**lag for lag in range(n)]
            tilted = []
            for token in range(T):
                now = float(p[b, w, token])
                seen = [float(past[b, lag, w, token]) for lag in range(n)]
                gain = rule(now, seen, weights, c)
                tilted.append(now * math.exp(max(-c.clip, min(c.clip, gain))))
            result[b, w] = torch.tensor(tilted) * float(p[b, w].sum()) / sum(tilted)
    return result


def growth(now, seen, weights, c):
    path = [now, *seen[: c.rises]]
    rose = len(path) == c.rises + 1 and all(a > b for a, b in itertools.pairwise(path))
    if not rose:
        return 0.0
    mean = sum(w * s for w, s in zip(weights, seen, strict=True)) / sum(weights)
    return c.beta * (math.log(now + 1e-6) - math.log(mean + 1e-6))


def history(now, seen, weights, c):
    if not seen:
        return 0.0
    log_mean = sum(w * math.log(s + 1e-6) for w, s in zip(weights, seen, strict=True)) / sum(
        weights
    )
    return c.momentum * (math.log(now + 1e-6) - log_mean)


@pytest.mark.parametrize("rises", [1, 2, 3])
def test_published_is_its_formula(distributions, rises):
    c = PredictionConfig(kind="published", rises=rises, history=L, beta=1.3, decay=0.6, clip=0.8)
    p, past, age = distributions
    gain = c.beta * published(Trend(newest(p, past), age, c.decay), rises)
    found = scaled(p, [gain], c.clip)[:, 0]
    assert torch.allclose(found, slow(*distributions, c, growth))


def test_momentum_is_its_formula(distributions):
    c = PredictionConfig(kind="momentum", history=L, momentum=-0.4, decay=0.6)
    p, past, age = distributions
    gain = c.momentum * momentum(Trend(newest(p, past), age, c.decay))
    found = scaled(p, [gain], c.clip)[:, 0]
    assert torch.allclose(found, slow(*distributions, c, history))


def test_rising_needs_a_history_long_enough(distributions):
    p, past, age = distributions
    assert not rising(newest(p, past), age, 3)[age < 3].any()
    assert rising(newest(p, past), age, 1)[age >= 1].any()


@pytest.mark.parametrize("kind", ["published", "momentum", "adaptive"])
def test_prediction_keeps_the_mass_and_the_support(distributions, kind):
    p, past, age = distributions
    p = p.clone()
    p[0, 3, 2] = 0
    found = predictions(PredictionConfig(kind=kind, rises=1), newest(p, past), age)
    assert torch.allclose(found.sum(-1), p.sum(-1)[:, None].expand_as(found.sum(-1)))
    # A position without a history keeps its distribution.
    assert torch.allclose(found[0, :, 0], p[0, 0].expand_as(found[0, :, 0]), rtol=1e-12)
    assert (found[0, :, 3, 2] == 0).all() and (found >= 0).all()


def test_adaptive_compares_the_plain_distribution_first(distributions):
    config = PredictionConfig(kind="adaptive")
    p, past, age = distributions
    found = predictions(config, newest(p, past), age)
    assert found.shape[1] == n_compared(config) == 5
    assert torch.equal(found[:, 0], p)
