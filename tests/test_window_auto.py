"""`window: auto`: the process that begins a folder picks a number, everybody after it takes that
number.
"""

import json

import pytest

from sjdvp.config import DecoderConfig, RunConfig, RunSettings
from sjdvp.errors import ConfigError, FolderError
from sjdvp.events import ignore
from sjdvp.generate import Request, generate, preview
from sjdvp.profiles import resolve
from sjdvp.runs.jsonl import read_rows
from sjdvp.runs.sharding import log_paths
from tests.fake_generator import FakeGenerator

pytestmark = pytest.mark.process

AUTO = RunConfig(decoder=DecoderConfig(window="auto"), run=RunSettings(seed=7))


def run(out, config, pick_window, *prompts):
    generate(Request(config, out, inline=prompts), FakeGenerator().open, ignore, pick_window)


def never(config):
    raise AssertionError("asked again")


def test_the_first_process_picks_and_the_others_follow(tmp_path):
    run(tmp_path, AUTO, lambda config: 24, "plum")
    stored = json.loads((tmp_path / "run.json").read_text())
    assert stored["pixel_settings"]["decoder"]["window"] == 24
    assert stored["fingerprint"] == AUTO.with_window(24).fingerprint()
    run(tmp_path, AUTO, never, "plum", "fig")
    run(tmp_path, AUTO.with_window(24), never, "plum", "fig", "pear")
    rows = [row for path in log_paths(tmp_path) for row in read_rows(path)]
    assert [row["params"]["window"] for row in rows] == [24, 24, 24]
    with pytest.raises(FolderError, match=r"decoder\.window: 24 there, 8 now"):
        run(tmp_path, AUTO.with_window(8), never, "plum")


def test_a_preview_picks_nothing(tmp_path):
    assert preview(Request(AUTO, tmp_path / "new", inline=("plum",))).requested == 1
    assert not (tmp_path / "new").exists()


def test_where_nobody_can_pick_auto_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="can be auto only in `sjdvp generate`"):
        generate(Request(AUTO, tmp_path, inline=("plum",)), FakeGenerator().open, ignore)
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("layer", ["flag", "environment"])
def test_auto_can_be_given_as_text(layer):
    flags, environ = (
        ({"decoder.window": "auto"}, {})
        if layer == "flag"
        else ({}, {"SJDVP_DECODER_WINDOW": "auto"})
    )
    assert resolve("emoji", flags, environ).config.decoder.window == "auto"
    assert (
        resolve("emoji", {**flags, "decoder.preset": "ar"}, environ).config.decoder.window == 1
    )  # what ar means
