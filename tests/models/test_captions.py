"""The cleaning of LlamaGen's captions; expected texts are those of the official code."""

import sys
import warnings

import pytest

from sjdvp.errors import ConfigError
from sjdvp.models.t5 import caption_cleaner

CASES = {
    "A blue Porsche 356 parked in front of a brick wall.": (
        "a blue porsche 356 parked in front of a brick wall."
    ),
    "  A cat, holding a sign that says “Hi!” ": 'a cat, holding a sign that says "hi!"',
    "see https://x.org/a?b=1 @bob <b>a dog</b>": "see ?b=1 a dog",
    "IMG_001.png": "",
    "a 2x2 grid (red | green)": "a grid red green",
    "ein_Haus-am_See-im_Wald": "ein haus am see im wald",
    "caf&eacute; &amp; bar — n° 1234567": "café bar - n°",
}


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_cleaned_as_in_training(text: str, expected: str) -> None:
    pytest.importorskip("ftfy")
    pytest.importorskip("bs4")
    with warnings.catch_warnings(record=True) as caught:
        assert caption_cleaner()(text) == expected
    assert not caught


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    with pytest.raises(ConfigError, match="ftfy is not installed") as caught:
        caption_cleaner()
    assert caught.value.exit_code == 2
    assert "pip install '.[t5]'" in caught.value.hint
    assert "clean_captions=false" in caught.value.hint
