"""`sjdvp profiles`."""

import json

import pytest


def test_list(sjdvp):
    assert "emoji\tThe embedded model." in sjdvp("profiles").out
    assert "description" in json.loads(sjdvp("profiles", "--json").out)["emoji"]


def test_show_prints_every_value_with_its_origin(sjdvp, monkeypatch):
    monkeypatch.setenv("SJDVP_SAMPLING_TOP_K", "50")
    rows = [
        line.split("\t")
        for line in sjdvp(
            "profiles", "show", "emoji", "--set", "decoder.preset=sjd", "--set", "model.width=32"
        ).out.splitlines()
    ]
    shown = {key: (value, origin) for key, value, origin in rows}
    assert shown["sampling.top_k"] == ("50", "SJDVP_SAMPLING_TOP_K")
    assert shown["decoder.drafter"] == ("independent", "decoder sjd")
    assert shown["model.width"] == ("32", "flag")
    assert shown["run.seed"] == ("null", "built-in")


def test_show_json(sjdvp):
    shown = json.loads(sjdvp("profiles", "show", "--set", "decoder.window=8", "--json").out)
    assert shown["decoder.window"] == {"value": 8, "from": "flag"}


def test_show_says_what_it_did_not_use(sjdvp):
    result = sjdvp("profiles", "show", "--set", "decoder.preset=ar", "--set", "decoder.window=8")
    assert result.err == "sjdvp: warning: decoder ar means decoder.window 1; 8 is not used\n"


def test_check(sjdvp, tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("sampling: {cfg_scale: 3}\n")
    bad.write_text("sampling: {cfg_scal: 3}\n")
    assert sjdvp("profiles", "check", good).out.startswith("good\t")
    result = sjdvp("profiles", "check", good, bad)
    assert result.code == 2
    assert "did you mean sampling.cfg_scale" in result.err.replace("\n", " ")


BROKEN = {
    "twice": "run: {}\nrun: {}\n",
    "list": "- a\n",
    "bytes": b"\xff",
    "torn": "sampling: {cfg_scale\n",
}


@pytest.fixture
def home(sjdvp, tmp_path):
    """The user's own profiles: one that is right, and those that are not."""
    folder = tmp_path / "config" / "sjdvp" / "profiles"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("description: my own\n")
    for name, text in BROKEN.items():
        (folder / f"{name}.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_broken_profiles_are_told_and_the_others_listed(sjdvp, home, flags):
    result = sjdvp("profiles", *flags)
    assert result.code == 0
    assert "emoji" in result.out
    assert "my own" in result.out
    assert not [name for name in BROKEN if name in result.out]
    lines = result.err.splitlines()
    assert len(lines) == len(BROKEN)
    for name, line in zip(sorted(BROKEN), lines, strict=True):
        assert line.startswith(f"sjdvp: warning: left out: {home / name}.yaml")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_check_tells_of_every_file(sjdvp, home, flags):
    (home / "key.yaml").write_text("sampling: {cfg_scal: 3}\n")
    (home / "value.yaml").write_text("sampling: {cfg_scale: -3}\n")
    result = sjdvp("profiles", "check", *flags)
    assert result.code == 2
    assert "mine" in result.out
    assert "emoji" in result.out
    assert result.err.count("sjdvp: error: ") == len(BROKEN) + 2
    for name in BROKEN:
        assert f"{home / name}.yaml" in result.err
    assert "did you mean sampling.cfg_scale?" in result.err


def test_check_tells_once_of_what_is_wrong_everywhere(sjdvp, home):
    (home.parent / "config.yaml").write_text("sampling: {cfg_scale: x}\n")
    result = sjdvp("profiles", "check", "mine", "emoji", "anole-7b")
    assert (result.code, result.err.count("sjdvp: error: ")) == (2, 1)
