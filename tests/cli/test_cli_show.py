"""`sjdvp show` on images that another program has written or changed."""

import json

import numpy as np
import pytest

from sjdvp.runs.writer import encode_png


def image(tmp_path, text):
    file = tmp_path / "image.png"
    file.write_bytes(encode_png(np.zeros((8, 8, 3), np.uint8), {"sjdvp": text}))
    return file


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '"text"',
        "5",
        "null",
        "true",
        "{",
        "",
        "[" * 100_000,
        '{"seed": NaN}',
        '{"a": [1e999]}',
    ],
)
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_settings_that_are_none_are_said(sjdvp, tmp_path, text, flags):
    result = sjdvp("show", image(tmp_path, text), *flags)
    assert (result.code, result.out) == (2, "")
    assert "the settings in image.png" in result.err


@pytest.mark.parametrize(
    "row",
    [{}, {"prompt": "\x1b\u202e", "seed": 2**60}, {"params": {"top_p": 1e300}, "prompt": None}],
)
def test_what_is_shown_as_json_is_json(sjdvp, tmp_path, row):
    def refuse(name):
        raise AssertionError(name)

    shown = sjdvp("show", image(tmp_path, json.dumps(row)), "--json").out
    assert json.loads(shown, parse_constant=refuse) == row
    assert sjdvp("show", image(tmp_path, json.dumps(row))).code == 0
