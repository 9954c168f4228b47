"""A few runs of tests/chaos.py, which is run at length by hand."""

import pytest

from tests.chaos import chaos

pytestmark = pytest.mark.process


def test_killed_runs_lose_nothing_and_draw_nothing_twice():
    report = chaos(runs=3, seed=3)
    assert report["kills"] >= 3
    assert (report["lost"], report["duplicated"], report["corrupt"]) == (0, 0, 0)
