"""Counter noise: a pure function, uniform, and never an end point."""

import pytest
import torch

from sjdvp import rng
from sjdvp.rng import Noise, Purpose
from tests.engine.inductor import source_of


def noise_at(keys: torch.Tensor, pos: torch.Tensor, steps: torch.Tensor) -> Noise:
    return Noise(rng.position_keys(keys, pos), steps)


def splitmix64(x: int) -> int:
    """SplitMix64's finaliser in plain integers."""
    mask = (1 << 64) - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_keys_are_splitmix64_of_the_seed():
    seeds = [0, 1, 2**53 - 1]
    wanted = [splitmix64((seed + 0x9E3779B97F4A7C15) % 2**64) for seed in seeds]
    assert [key % 2**64 for key in rng.keys(seeds).tolist()] == wanted


def test_splitmix64_gives_its_published_first_output():
    # Seed 1234567 (Vigna's reference implementation).
    assert rng.keys([1234567])[0].item() % 2**64 == 6457827717110365317


def test_uniform_stays_inside_the_open_interval_at_its_ends(monkeypatch):
    ends = torch.tensor([0, -1])  # all bits clear, all bits set
    monkeypatch.setattr(rng, "_chain", lambda key, *counters: key)
    u = rng.uniform(ends)
    assert u[0] == 2.0**-24 and u[1] == 1 - 2.0**-24
    e = rng.exponential(ends)
    assert torch.isfinite(e).all() and (e > 0).all()


def test_uniform_has_the_moments_of_a_uniform():
    u = rng.uniform(rng.keys(list(range(1000)))[:, None], torch.arange(1000))
    assert abs(u.mean() - 0.5) < 1e-3 and abs(u.var() - 1 / 12) < 1e-3
    assert abs(torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1]) < 4e-3


def test_exponential_has_the_moments_of_an_exponential():
    e = rng.exponential(rng.keys(list(range(1000)))[:, None], torch.arange(1000))
    assert abs(e.mean() - 1) < 5e-3 and abs(e.var() - 1) < 2e-2


def test_noise_is_a_function_of_seed_position_step_and_purpose():
    keys, steps = rng.keys([5, 6]), torch.tensor([3, 9])
    here = noise_at(keys, torch.tensor([[4, 5, 6], [0, 1, 2]]), steps)
    moved = noise_at(keys.flip(0), torch.tensor([[1, 2, 3], [5, 6, 7]]), steps.flip(0))
    assert torch.equal(here.ticks_BW(Purpose.ACCEPT)[0, 1:], moved.ticks_BW(Purpose.ACCEPT)[1, :2])
    assert torch.equal(
        here.exponential_BWT(torch.arange(7))[1, 1], moved.exponential_BWT(torch.arange(7))[0, 0]
    )
    numbers = [
        here.ticks_BW(purpose)[0, 0].item() for purpose in Purpose if purpose != Purpose.GUMBEL
    ]
    assert len(set(numbers)) == len(numbers) == 4
    assert numbers == [
        rng.uniform(keys[0], torch.tensor(4), steps[0], purpose).item() * 2**24
        for purpose in range(1, 5)
    ]


def test_fixed_noise_does_not_change_with_the_step_and_other_noise_does():
    pos = torch.tensor([[8]])
    early, late = (
        noise_at(rng.keys([1]), pos, torch.tensor([0])),
        noise_at(rng.keys([1]), pos, torch.tensor([1])),
    )
    assert torch.equal(
        early.exponential_BWT(torch.arange(9)), late.exponential_BWT(torch.arange(9))
    )
    assert not torch.equal(early.ticks_BW(Purpose.DRAFT), late.ticks_BW(Purpose.DRAFT))


def test_a_part_of_the_noise_is_the_noise_of_that_part():
    keys, steps, by = rng.keys([5, 6]), torch.tensor([3, 9]), torch.tensor([3, 1])
    start = torch.tensor([[10], [20]])
    whole = noise_at(keys, start + torch.arange(6), steps)
    for part, pos in (
        (whole.first(3), start + torch.arange(3)),
        (whole.at(by[:, None] + torch.arange(3)), start + by[:, None] + torch.arange(3)),
    ):
        alone = noise_at(keys, pos, steps)
        assert torch.equal(
            part.exponential_BWT(torch.arange(4)), alone.exponential_BWT(torch.arange(4))
        )
        for purpose in range(Purpose.ACCEPT, Purpose.GUMBEL):
            assert torch.equal(part.ticks_BW(Purpose(purpose)), alone.ticks_BW(Purpose(purpose)))


@pytest.mark.process
def test_a_counter_is_no_index_of_a_compiled_kernel(monkeypatch):
    """An index is 32 bits wide on a GPU, and Triton refuses to multiply it by gamma."""

    def products_of_an_index(counters):
        def noise(key_B):
            return rng.exponential(key_B[:, None], int(Purpose.GUMBEL), counters(key_B.device))

        source = source_of(monkeypatch, noise, rng.keys([1, 2]))
        return [line for line in source.splitlines() if f"({rng._GAMMA}L)*x" in line]

    assert products_of_an_index(lambda device: torch.arange(4096, device=device))
    assert not products_of_an_index(lambda device: rng.counters(0, 4096, device))
