"""A few kills of tests/chaos.py, which is run at length by hand."""

import pytest

from tests.chaos import chaos

pytestmark = pytest.mark.process


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_runs_lose_nothing_and_generate_nothing_twice(kills):
    report = chaos(kills, seed=3)
    assert report["kills"] >= kills
    assert (report["lost"], report["duplicated"], report["corrupt"]) == (0, 0, 0)
