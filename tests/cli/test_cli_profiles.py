"""`sjdvp profiles`."""

import json


def test_list(sjdvp):
    assert "emoji\tThe embedded model." in sjdvp("profiles").out
    assert "description" in json.loads(sjdvp("profiles", "--json").out)["emoji"]


def test_show_prints_every_value_with_its_origin(sjdvp, monkeypatch):
    monkeypatch.setenv("SJDVP_SAMPLING_TOP_K", "50")
    rows = [line.split("\t") for line in sjdvp("profiles", "show", "emoji", "--decoder", "sjd", "--size", "32x64").out.splitlines()]
    shown = {key: (value, origin) for key, value, origin in rows}
    assert shown["sampling.top_k"] == ("50", "SJDVP_SAMPLING_TOP_K")
    assert shown["decoder.drafter"] == ("independent", "decoder sjd")
    assert shown["model.width"] == ("32", "flag")
    assert shown["model.height"] == ("64", "flag")
    assert shown["run.seed"] == ("null", "built-in")


def test_show_json(sjdvp):
    shown = json.loads(sjdvp("profiles", "show", "--window", "8", "--json").out)
    assert shown["decoder.window"] == {"value": 8, "from": "flag"}


def test_show_says_what_it_did_not_use(sjdvp):
    result = sjdvp("profiles", "show", "--decoder", "ar", "--window", "8")
    assert result.err == "sjdvp: decoder ar means decoder.window 1: the 8 given by flag is not used\n"


def test_check(sjdvp, tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("sampling: {cfg_scale: 3}\n")
    bad.write_text("sampling: {cfg_scal: 3}\n")
    assert sjdvp("profiles", "check", good).out.startswith("good\t")
    result = sjdvp("profiles", "check", good, bad)
    assert result.code == 2
    assert "did you mean sampling.cfg_scale" in result.err.replace("\n", " ")
