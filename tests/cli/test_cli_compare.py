"""`sjdvp compare` and `sjdvp report`, with fake engines and everything else real."""

import io
import json
import re
import sys

import pytest

from sjdvp.errors import StorageError
from sjdvp.report.load import load_runs
from sjdvp.report.table import make_results, metric_cells, speedup_cells
from sjdvp_cli.report import show_results
from tests.cli.conftest import Terminal
from tests.report.synthetic import make_run

pytestmark = pytest.mark.usefixtures("generator")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "compared"


def last(text):
    return text.rstrip("\n").rsplit("\n", 1)[-1]


def test_a_comparison_leaves_folders_and_a_report(sjdvp, out):
    prompts = ("--prompt", "a cat", "--prompt", "a dog")
    command = ("compare", "--decoders", "ar,sjd", *prompts, "-o", out, "--json", "--seed", 1)
    result = sjdvp(*command)
    assert result.code == 0
    table = json.loads(result.out)
    assert [line["decoder"] for line in table["decoders"]] == ["ar", "sjd"]
    assert table["prompts"] == 2
    assert "sjdvp: 4/4 ok" in result.err
    assert {path.name for path in out.iterdir()} == {
        "ar",
        "sjd",
        "report.html",
        "report.md",
        "report.csv",
    }
    again = sjdvp(*command)
    assert json.loads(again.out) == table


def test_finished_folders(sjdvp, out, tmp_path):
    sjdvp("compare", "--decoders", "ar,sjd", "--prompt", "a cat", "-o", out, "--seed", 1)
    result = sjdvp("compare", out / "ar", out / "sjd")
    assert result.code == 0
    assert [line.split("\t")[:2] for line in result.out.splitlines()] == [
        ["ar", "lossless"],
        ["sjd", "lossless"],
    ]
    sjdvp(
        "generate", "--decoder", "sjdvp", "--prompt", "a cat", "-o", tmp_path / "other", "--seed", 2
    )
    refused = sjdvp("compare", out / "ar", tmp_path / "other")
    assert refused.code == 2
    assert "these runs differ from ar in more than the decoder" in refused.err
    assert "sjdvp: the run seed is 2, not 1" in refused.err


def test_prompts_from_stdin(sjdvp, out, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a cat\na dog\n")))
    result = sjdvp("compare", "--decoders", "ar,sjd", "--prompts", "-", "-o", out, "--json")
    assert (result.code, json.loads(result.out)["prompts"]) == (0, 2)


def test_a_run_folder_takes_no_comparison(sjdvp, out):
    sjdvp("generate", "--prompt", "a cat", "-o", out)
    result = sjdvp("compare", "--decoders", "ar,sjd", "--prompt", "a cat", "-o", out)
    assert (result.code, "is a run folder itself" in result.err, (out / "ar").exists()) == (
        2,
        True,
        False,
    )


def test_a_failed_image_is_exit_1(sjdvp, out):
    result = sjdvp(
        "compare", "--decoders", "ar,sjd", "--prompt", "fail", "--prompt", "a", "-o", out
    )
    assert result.code == 1
    assert "sjdvp: 2/4 ok, 2 failed; run the same command to resume" in result.err


def test_a_sweep(sjdvp, out):
    sjdvp("compare", "--decoders", "ar,sjd", "--sweep", "window=8,16", "--prompt", "a", "-o", out)
    assert {path.name for path in out.iterdir() if path.is_dir()} == {
        "ar",
        "sjd,window=8",
        "sjd,window=16",
    }


def test_report(sjdvp, out, tmp_path):
    sjdvp("generate", "--prompt", "a cat", "-o", out)
    result = sjdvp("report", out)
    assert (result.code, result.out.split("\t")[:2]) == (0, ["best", "lossless"])
    assert (out / "report.html").is_file()
    assert re.fullmatch(rf"sjdvp: wrote {out / 'report.csv'} \([\d.]+ kB\)", last(result.err))
    assert sjdvp("report", out, "-o", tmp_path / "deep" / "page.html").code == 0
    assert (tmp_path / "deep" / "page.md").is_file()


@pytest.mark.parametrize("columns", ["80", "100"])
def test_no_figure_of_the_table_is_broken(tmp_path, monkeypatch, columns):
    """At a terminal: each cell is in one piece, but for its spaces."""
    runs = load_runs([make_run(tmp_path / name, name, 12) for name in ("ar", "sjd", "same-noise")])
    results = make_results(runs)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    show_results(results)
    words = set(terminal.getvalue().split())
    for line in results:
        assert words >= {
            word for cell in metric_cells(line) + speedup_cells(line) for word in cell.split()
        }


@pytest.mark.parametrize("arguments", [["report"], ["export", "--layout", "flat", "--to", "full"]])
def test_a_full_disk_is_no_run_to_resume(sjdvp, out, arguments, tmp_path, monkeypatch):
    def refuse(path, data):
        raise StorageError(
            "cannot write: No space left on device",
            "make room, then run the same command to resume",
        )

    monkeypatch.chdir(tmp_path)
    sjdvp("generate", "--prompt", "a cat", "-o", out)
    monkeypatch.setattr("sjdvp.report.write.write_atomic", refuse)
    monkeypatch.setattr("sjdvp.runs.export._link", refuse)
    result = sjdvp(*arguments, out)
    assert (result.code, "No space left" in result.err, "elsewhere" in result.err) == (
        1,
        True,
        True,
    )
    assert "resume" not in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["compare", "--decoders", "ar"],
            "compare needs --decoders and --out, or finished run folders",
        ),
        (
            ["compare", "--decoders", "ar", "-o", "x"],
            "prompts must come from either --prompts or --prompt",
        ),
        (
            ["compare", "--decoders", "ar, ar", "-o", "x", "--prompt", "a"],
            "--decoders ar, ar names ar twice",
        ),
        (
            ["analyze", "--decoders", "sjd,sjd", "-o", "x", "--prompt", "a"],
            "--decoders sjd,sjd names sjd twice",
        ),
        (["compare", "--decoders", "ar,sdj", "-o", "x", "--prompt", "a"], "unknown decoder 'sdj'"),
        (
            ["compare", "--decoders", "ar", "--decoder", "sjd", "-o", "x", "--prompt", "a"],
            "no such option: --decoder",
        ),
        (
            ["compare", "--decoders", "ar", "--sweep", "window", "-o", "x", "--prompt", "a"],
            "--sweep must be KEY=VALUE,VALUE",
        ),
        (
            ["compare", "--decoders", "ar", "--sweep", "windw=3", "-o", "x", "--prompt", "a"],
            "unknown key decoder.windw",
        ),
        (
            ["compare", "--decoders", "ar", "--batch-size", "auto", "-o", "x", "--prompt", "a"],
            "a comparison needs a fixed batch size",
        ),
        (["compare", "one", "--decoders", "ar"], "finished run folders take no --decoders"),
        (["report", "absent"], "absent is not a run folder"),
        (["report", "x", "-o", "page.pdf"], "--out must name a .html file, found page.pdf"),
    ],
)
def test_mistakes(sjdvp, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = sjdvp(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert not list(tmp_path.glob("x*"))
