"""The relaxed verifiers against slow versions of their rules, and their limits: with nothing to
borrow they are exact.
"""

import pytest
import torch

from sjdvp import rng
from sjdvp.config import RelaxConfig
from sjdvp.decode.distributions import Dense
from sjdvp.decode.verify import Gsd, Lantern, RejectionSampling, nearest
from sjdvp.engine.disk_cache import cached_neighbours
from sjdvp.rng import TICK, Noise, Purpose

V, W, B = 12, 5, 300
DENSE = Dense(V, V)


@pytest.fixture(scope="module")
def case():
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.rand(B, W, V, generator=generator).pow(3) for _ in range(2))
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    draft = torch.multinomial(q.view(-1, V), 1, generator=generator).view(B, W)
    noise = Noise(
        rng.position_keys(rng.keys(list(range(B))), torch.arange(W).expand(B, W)),
        torch.zeros(B, dtype=torch.int64),
    )
    codebook = torch.rand(V, 3, generator=generator)
    return p, q, draft, noise, codebook


def test_nearest_is_the_sorted_distance(case):
    codebook = case[-1]
    for token, row in enumerate(nearest(codebook, 4, chunk=5)):
        others = sorted(
            (c for c in range(V) if c != token),
            key=lambda c: float((codebook[c] - codebook[token]).norm()),
        )
        assert row.tolist() == others[:4]


@pytest.mark.parametrize(
    "relax", [RelaxConfig(neighbours=6, delta=0.1), RelaxConfig(neighbours=6, scale=2.0)]
)
def test_lantern_follows_its_rule(case, relax):
    p, q, draft, noise, codebook = case
    near = nearest(codebook, relax.neighbours)
    verdict = Lantern(DENSE, relax, near)(p, q, draft, noise)
    u = noise.ticks_BW(Purpose.ACCEPT) * TICK
    for b in range(B):
        accepted = 0
        for w in range(W - 1):
            x = int(draft[b, w])
            budget, lent = relax.scale * float(p[b, w, x]) if relax.scale else relax.delta, 0.0
            for c in near[x].tolist():
                if lent + float(p[b, w, c]) > budget:
                    break
                lent += float(p[b, w, c])
            if u[b, w] * q[b, w, x] >= p[b, w, x] + lent:
                assert verdict.token_B[b] != x
                break
            accepted += 1
        assert verdict.accepted_B[b] == accepted


def test_gsd_follows_its_rule(case):
    p, q, draft, noise, codebook = case
    relax = RelaxConfig(group=5, delta=0.08, distance=0.6)
    verdict = Gsd(DENSE, relax, codebook)(p, q, draft, noise)
    u = noise.ticks_BW(Purpose.ACCEPT) * TICK
    for b in range(B):
        accepted = 0
        for w in range(W - 1):
            x = int(draft[b, w])
            order = p[b, w].argsort(descending=True).tolist()
            place = order.index(x)
            group = [
                c
                for c in order[max(0, place - 2) : place + 3]
                if c == x
                or (
                    abs(p[b, w, c] - p[b, w, x]) < relax.delta
                    and (codebook[c] - codebook[x]).norm() < relax.distance
                )
            ]
            if u[b, w] * q[b, w, group].sum() >= p[b, w, group].sum():
                break
            accepted += 1
        assert verdict.accepted_B[b] == accepted


@pytest.mark.parametrize("relaxed", [
    lambda codebook: Lantern(DENSE, RelaxConfig(neighbours=3, delta=0.0), nearest(codebook, 3)),
    lambda codebook: Gsd(DENSE, RelaxConfig(group=1), codebook),
    lambda codebook: Gsd(DENSE, RelaxConfig(group=9, distance=0.0), codebook),
])  # fmt: skip
def test_with_nothing_to_borrow_they_are_exact(case, relaxed):
    *tensors, codebook = case
    mine, exact = relaxed(codebook)(*tensors), RejectionSampling(DENSE)(*tensors)
    assert torch.equal(mine.accepted_B, exact.accepted_B) and torch.equal(
        mine.token_B, exact.token_B
    )


def test_relaxing_more_accepts_more(case):
    *tensors, codebook = case
    near = nearest(codebook, 11)
    accepted = [
        Lantern(DENSE, RelaxConfig(delta=d), near)(*tensors).accepted_B.sum()
        for d in (0.0, 0.1, 0.4, 1.0)
    ]
    assert accepted == sorted(accepted) and accepted[0] < accepted[-1]


def test_neighbours_are_kept_by_the_digest_of_the_codebook(case, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    codebook = case[-1]
    first = cached_neighbours(codebook, 4)
    assert len(list((tmp_path / "sjdvp").iterdir())) == 1
    monkeypatch.setattr("sjdvp.engine.disk_cache.nearest", lambda *_: pytest.fail("computed again"))
    assert torch.equal(cached_neighbours(codebook, 4), first)


def test_a_cache_that_cannot_be_written_is_no_obstacle(case, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert cached_neighbours(case[-1], 4).shape == (V, 4)
