"""From observed images to JSON, tables and the page: through the engine, on a tiny model."""

import json
import re

import pytest

from sjdvp.analysis.variants import plan
from sjdvp.profiles import resolve
from sjdvp_cli.app import run
from tests.engine.tiny import save_tiny_model

pytestmark = pytest.mark.process

KEYS = {
    "decoder", "lossless", "greedy", "images", "failed", "nfe", "tokens_per_nfe", "accept_rate",
    "speedup_nfe", "ci95", "same_tokens_as_ar", "growth", "rises", "distances", "window",
    "fidelity", "change", "quantize",
}  # fmt: skip


@pytest.fixture(scope="module")
def line(tmp_path_factory) -> list[str]:
    """A command that lacks --decoders."""
    root = tmp_path_factory.mktemp("analyze")
    model = save_tiny_model(root / "model")
    settings = [
        "--model",
        model,
        "--set",
        "model.width=null",
        "--set",
        "model.height=null",
        "--window",
        "4",
        "--seed",
        "3",
    ]
    words = [
        "analyze",
        "--prompt",
        "red dog",
        "--prompt",
        "blue cat",
        "-o",
        root / "found",
        "-n",
        "2",
        "--batch-size",
        "2",
        *settings,
    ]
    return [str(word) for word in words]


@pytest.fixture(scope="module")
def found(line) -> dict:
    assert run([*line, "--decoders", "ar,sjd,gsd", "--quiet"]) == 0
    return json.loads(_file(line, "analysis.json").read_text())


def _file(line, name):
    from pathlib import Path

    return Path(line[line.index("-o") + 1]) / name


def test_json_has_every_finding_and_no_times(found):
    assert set(found) == {"decoders", "prompts", "device", "base"}
    assert [row["decoder"] for row in found["decoders"]] == ["ar", "sjd", "gsd"]
    for row in found["decoders"]:
        assert set(row) == KEYS
        # The first token of an image comes from the prefill.
        assert row["fidelity"]["tokens"] == 4 * 19
        fidelity, surplus = row["fidelity"], row["fidelity"]["surplus"]
        assert surplus["value"] == pytest.approx(
            fidelity["log_likelihood"] / fidelity["entropy"] + 1
        )
        assert surplus["low"] <= surplus["value"] <= surplus["high"]
    plain, sjd, _ = found["decoders"]
    assert (found["base"], plain["change"]) == ("ar", None)
    assert sjd["change"]["low"] <= sjd["change"]["value"] <= sjd["change"]["high"]
    assert plain["growth"]["tokens"] == 0  # in a window of 1 every position is seen once
    # The last position of the window never holds a draft token that is tested.
    assert sjd["window"]["tested"][0] > 0 and sjd["window"]["tested"][-1] == 0


def test_page_shows_it_and_needs_nothing_else(line, found):
    page = _file(line, "analysis.html").read_text()
    assert (
        "Analysis of 3 decoders" in page
        and page.count("<table>") == 4
        and page.count("<svg role") > 10
    )
    assert not re.search(r"(src|href)=\"(?!data:)", page) and "<script" not in page


def test_an_analysis_resumes(line, found):
    before = _file(line, "gsd.sums.jsonl").read_bytes()
    assert run([*line, "--decoders", "ar,sjd,gsd", "--quiet"]) == 0
    assert json.loads(_file(line, "analysis.json").read_text()) == found
    assert _file(line, "gsd.sums.jsonl").read_bytes() == before


def test_images_that_were_not_observed_are_refused(line, found, capsys):
    sums = _file(line, "sjd.sums.jsonl")
    kept = sums.read_bytes()
    sums.write_bytes(kept.splitlines(keepends=True)[0])
    assert run([*line, "--decoders", "ar,sjd,gsd", "--quiet"]) == 2
    assert "3 images were generated without being observed" in capsys.readouterr().err
    sums.write_bytes(kept)


def test_mistakes(line, capsys):
    assert run([*line, "--decoders", "sjd", "--temperature", "0"]) == 2
    assert "greedy decoding uses no distributions" in capsys.readouterr().err
    assert run([*line, "--decoder", "sjd"]) == 2
    assert "did you mean --decoders" in capsys.readouterr().err


def test_grids_vary_one_setting_at_a_time_and_draw_nothing_twice():
    variants = plan(
        ["sjd", "sjdvp"], {}, grids=True, resolve=lambda more: resolve("emoji", more, {})
    )
    names = [variant.name for variant in variants]
    assert names[:2] == ["sjd", "sjdvp"]
    assert len({variant.config.decoder for variant in variants}) == len(variants) == len(set(names))
    growth = [
        variant.config.decoder.prediction
        for variant in variants
        if variant.config.decoder.prediction.kind == "published"
    ]
    assert {prediction.rises for prediction in growth} == {1, 2, 3, 4} and {
        prediction.history for prediction in growth
    } == {3, 4, 6, 8}
    assert {prediction.decay for prediction in growth} == {0.25, 0.5, 1} and {
        prediction.beta for prediction in growth
    } == {0.25, 0.5, 1, 2}
    assert {variant.config.decoder.window for variant in variants} >= {8, 16, 32, 64}
