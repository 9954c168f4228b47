"""Sums, spreads, grids, paired gains: against values worked out by hand."""

import random
from pathlib import Path

import pytest

from sjdvp.report import charts
from sjdvp.report.load import load_runs
from sjdvp.report.metrics import (
    acceptance_map,
    committed_shares,
    metrics,
    quantile,
    ratio,
    same_tokens,
    speedup,
)
from tests.report.synthetic import make_run


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 2.5), (0.9, 3.7), (1, 4)])
def test_quantile(share, value):
    assert quantile([4, 1, 3, 2], share) == pytest.approx(value)


def test_metrics_divide_sums():
    rows = [
        {
            "nfe": 10,
            "image_tokens": 100,
            "drafted": 20,
            "accepted": 10,
            "decode_s": 1.0,
            "latency_s": 2.0,
        },
        {
            "nfe": 30,
            "image_tokens": 100,
            "drafted": 60,
            "accepted": 20,
            "decode_s": 1.0,
            "latency_s": 4.0,
        },
    ]
    found = metrics(rows)
    assert (found.images, found.nfe, found.tokens_per_nfe, found.accept_rate, found.step_ms) == (
        2,
        20,
        5,
        30 / 80,
        50,
    )
    assert (found.latency_s.median, found.latency_s.p90) == (3.0, pytest.approx(3.8))


def test_metrics_of_nothing():
    found = metrics([{"nfe": None, "latency_s": "soon", "drafted": True}])
    assert (found.nfe, found.latency_s, found.accept_rate) == (None, None, None)
    assert ratio([], "accepted", "drafted") is None


def test_accept_grid_takes_its_shape_from_the_image():
    rows = [
        {"accept_map": "110000", "width": 30, "height": 20},
        {"accept_map": "100001"},
        {"accept_map": "1"},
        {},
    ]
    assert acceptance_map(rows) == [[1, 0.5, 0], [0, 0, 0.5]]
    assert acceptance_map([{"accept_map": None}]) is None
    assert acceptance_map([{"accept_map": "11111", "width": 20, "height": 20}]) is None


def test_commits_adds_histograms_of_all_lengths():
    assert committed_shares(
        [{"accept_hist": [0, 2]}, {"accept_hist": [0, 1, 1]}, {"accept_hist": []}, {}]
    ) == [0, 0.75, 0.25]
    assert committed_shares([]) == []


def test_scales():
    assert charts.Scale.over([1, 100], wide=True).place(10) == pytest.approx(0.5)
    assert charts.Scale.over([1, 100], wide=True).at(0.5) == pytest.approx(10)
    assert charts.Scale.over([1, 3], wide=True).place(2) == 0.5  # not so wide
    assert charts.Scale.over([7, 7]).place(7) == pytest.approx(0.5)
    assert 0 <= charts.Scale.over([]).place(0.5) <= 1


def test_heat_maps_of_large_grids_are_averaged():
    svg = charts.heat_map([[i % 2 for i in range(64)] for _ in range(64)], charts.Scale(0, 1), "t")
    assert svg.count("<rect") == 32 * 32
    assert 'fill-opacity="0.52"' in svg


def two_runs(tmp_path: Path, **second):
    return load_runs(
        [make_run(tmp_path / "a", "ar", 12), make_run(tmp_path / "b", "sjd", 12, **second)]
    )


def test_speedup_is_the_ratio_of_totals_with_an_interval_around_it(tmp_path):
    ar, sjd = two_runs(tmp_path)
    found = speedup(ar, sjd, "nfe")
    assert found.value == pytest.approx(12 * 255 / sum(row["nfe"] for row in sjd.rows.values()))
    assert found.low < found.value < found.high
    assert speedup(ar, sjd, "nfe") == found  # nothing random is left


def test_interval_covers_the_truth_about_as_often_as_it_says(tmp_path, monkeypatch):
    ar, sjd = two_runs(tmp_path)
    monkeypatch.setattr("sjdvp.report.metrics.RESAMPLES", 200)
    dice, hits = random.Random(1), 0
    for _ in range(100):
        for row in sjd.rows.values():
            row["nfe"] = dice.uniform(40, 60)
        found = speedup(ar, sjd, "nfe")
        hits += found.low <= 255 / 50 <= found.high
    assert 84 <= hits <= 100


def test_speedup_counts_only_pairs(tmp_path):
    ar, sjd = two_runs(tmp_path, failed=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
    found = speedup(ar, sjd, "nfe")
    assert (found.value, found.low) == (255 / sjd.rows[11, 0]["nfe"], None)
    assert speedup(ar, ar, "nfe") is None
    assert speedup(ar, sjd, "absent") is None


def test_same_tokens(tmp_path):
    ar, sjd = two_runs(tmp_path)
    (same,) = load_runs([make_run(tmp_path / "c", "same-noise", 12)])
    assert (same_tokens(ar, sjd), same_tokens(ar, same), same_tokens(ar, ar)) == (0, 1, 1)
