"""`sjdvp compare` and `sjdvp report`, with a stand-in for the engines and everything else real."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("painter")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "compared"


def last(text):
    return text.rstrip("\n").rsplit("\n", 1)[-1]


def test_a_comparison_leaves_folders_and_a_report(sjdvp, out):
    result = sjdvp("compare", "--decoders", "ar,sjd", "--prompt", "a cat", "--prompt", "a dog", "-o", out, "--json", "--seed", 1)
    assert result.code == 0
    table = json.loads(result.out)
    assert [line["decoder"] for line in table["decoders"]] == ["ar", "sjd"]
    assert table["prompts"] == 2
    assert "sjdvp: 4/4 ok" in result.err
    assert {path.name for path in out.iterdir()} == {"ar", "sjd", "report.html", "report.md", "report.csv"}
    again = sjdvp("compare", "--decoders", "ar,sjd", "--prompt", "a cat", "--prompt", "a dog", "-o", out, "--json", "--seed", 1)
    assert json.loads(again.out) == table


def test_finished_folders(sjdvp, out, tmp_path):
    sjdvp("compare", "--decoders", "ar,sjd", "--prompt", "a cat", "-o", out, "--seed", 1)
    result = sjdvp("compare", out / "ar", out / "sjd")
    assert result.code == 0
    assert [line.split("\t")[:2] for line in result.out.splitlines()] == [["ar", "lossless"], ["sjd", "lossless"]]
    sjdvp("generate", "--decoder", "sjdvp", "--prompt", "a cat", "-o", tmp_path / "other", "--seed", 2)
    refused = sjdvp("compare", out / "ar", tmp_path / "other")
    assert refused.code == 2
    assert "these runs differ in more than the decoder" in refused.err
    assert "sjdvp: the run seed is 2, not 1" in refused.err


def test_a_failed_image_is_exit_1(sjdvp, out):
    result = sjdvp("compare", "--decoders", "ar,sjd", "--prompt", "fail", "--prompt", "a", "-o", out)
    assert result.code == 1
    assert "sjdvp: 2/4 ok, 2 failed; run the same command to resume" in result.err


def test_a_sweep(sjdvp, out):
    sjdvp("compare", "--decoders", "ar,sjd", "--sweep", "window=8,16", "--prompt", "a", "-o", out)
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"ar", "sjd,window=8", "sjd,window=16"}


def test_report(sjdvp, out, tmp_path):
    sjdvp("generate", "--prompt", "a cat", "-o", out)
    result = sjdvp("report", out)
    assert (result.code, result.out.split("\t")[:2]) == (0, ["best", "lossless"])
    assert (out / "report.html").is_file()
    assert last(result.err).startswith(f"sjdvp: wrote {out / 'report.csv'} (")
    assert sjdvp("report", out, "-o", tmp_path / "deep" / "page.html").code == 0
    assert (tmp_path / "deep" / "page.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--decoders", "ar"], "compare needs --decoders and --out, or finished run folders"),
        (["compare", "--decoders", "ar", "-o", "x"], "prompts come from either --prompts or --prompt"),
        (["compare", "--decoders", "ar,sdj", "-o", "x", "--prompt", "a"], "unknown decoder 'sdj'"),
        (
            ["compare", "--decoders", "ar", "--decoder", "sjd", "-o", "x", "--prompt", "a"],
            "--decoder sjd: a comparison has several",
        ),
        (["compare", "--decoders", "ar", "--sweep", "window", "-o", "x", "--prompt", "a"], "--sweep must be KEY=VALUE,VALUE"),
        (["compare", "--decoders", "ar", "--sweep", "windw=3", "-o", "x", "--prompt", "a"], "unknown key decoder.windw"),
        (["compare", "--decoders", "ar", "--batch-size", "auto", "-o", "x", "--prompt", "a"], "needs a batch size of its own"),
        (["compare", "one", "--decoders", "ar"], "finished folders are compared as they are"),
        (["report", "absent"], "absent is no run folder"),
        (["report", "x", "-o", "page.pdf"], "--out page.pdf: the page is a .html file"),
    ],
)
def test_mistakes(sjdvp, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = sjdvp(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert not list(tmp_path.glob("x*"))
