"""`sjdvp generate` and the commands that read its folder, with a fake engine and
everything else real.
"""

import io
import json
import sys

import pytest

from sjdvp.errors import WeightsError

pytestmark = pytest.mark.usefixtures("generator")


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("a cat\na dog\n\na cat\n", encoding="utf-8")
    return file


@pytest.fixture
def out(tmp_path):
    return tmp_path / "imgs"


def last(text):
    return text.rstrip("\n").rsplit("\n", 1)[-1]


def test_a_run_and_its_second_run(sjdvp, prompts, out, generator):
    result = sjdvp("generate", "--prompts", prompts, "-o", out)
    assert (result.code, result.out) == (0, "")
    assert last(result.err) == "sjdvp: 3/3 ok"
    assert sorted(file.name for file in (out / "images").iterdir()) == [
        "000000.png",
        "000001.png",
        "000002.png",
    ]
    result = sjdvp("generate", "--prompts", prompts, "-o", out)
    assert (result.code, last(result.err), len(generator)) == (0, "sjdvp: 3/3 ok", 1)


def test_json_is_the_last_line_of_stdout(sjdvp, out):
    result = sjdvp(
        "generate",
        "--prompt",
        "a cat",
        "--prompt",
        "fail",
        "-n",
        "2",
        "-o",
        out,
        "--json",
        "--log",
        "-",
        "-q",
    )
    *rows, summary = map(json.loads, result.out.splitlines())
    assert result.code == 1
    assert [row["status"] for row in rows] == ["ok", "ok", "failed", "failed"]
    keys = [
        "requested",
        "ok",
        "failed",
        "skipped",
        "wall_s",
        "load_s",
        "compile_s",
        "images_per_s",
        "nfe_mean",
        "accept_rate",
    ]
    assert list(summary) == keys
    assert (summary["requested"], summary["ok"], summary["failed"], summary["accept_rate"]) == (
        4,
        2,
        2,
        0.6,
    )
    assert last(result.err) == "sjdvp: 2/4 ok, 2 failed; run the same command to resume"


def test_paths(sjdvp, prompts, out):
    paths = [str(out / "images" / f"00000{i}.png") for i in range(3)]
    assert (
        sjdvp("generate", "--prompts", prompts, "-o", out, "--print", "paths").out.splitlines()
        == paths
    )
    assert sjdvp("generate", "--prompts", prompts, "-o", out, "-0", "--overwrite").out.split(
        "\0"
    ) == [*paths, ""]


def test_log_file_is_appended_to(sjdvp, prompts, out, tmp_path):
    log = tmp_path / "rows.jsonl"
    for seed in (1, 2):
        sjdvp("generate", "--prompts", prompts, "-o", out / str(seed), "--log", log, "--seed", seed)
    assert [json.loads(line)["index"] for line in log.read_text().splitlines()] == [
        0,
        1,
        2,
        0,
        1,
        2,
    ]
    result = sjdvp("generate", "--prompts", prompts, "-o", out, "--log", tmp_path / "no" / "folder")
    assert (result.code, "No such file" in result.err) == (2, True)


def test_prompts_from_stdin(sjdvp, out, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a cat\na dog\n")))
    result = sjdvp("generate", "--prompts", "-", "-o", out)
    assert (result.code, last(result.err)) == (0, "sjdvp: 2/2 ok")


def test_a_row_that_stdin_does_not_have(sjdvp, out, prompts, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a cat\na dog\n")))
    result = sjdvp("generate", "--prompts", "-", "--indices", "5", "-o", out)
    assert (result.code, "there is no row 5: stdin has rows 0 to 1" in result.err) == (2, True)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a cat\na dog\n")))
    assert sjdvp("generate", "--prompts", "-", "--indices", "1", "-o", out).code == 0


def test_prompts_command_reads_stdin(sjdvp, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"prompt\tx\na cat\t1\n")))
    result = sjdvp("prompts", "-", "--format", "tsv")
    assert (result.code, result.out) == (0, "0\ta cat\n")


def test_what_stopped_a_run_is_said_before_that_it_stopped(sjdvp, out):
    result = sjdvp(
        "generate", "--prompt", "fail", "--prompt", "a cat", "--fail-fast", "-q", "-o", out
    )
    failed, stopped, end = result.err.splitlines()[-3:]
    assert failed.startswith("sjdvp: failed: prompt row 0, fail: ImageError")
    assert stopped == "sjdvp: warning: stopped: 1 failed image, 0 allowed"
    assert end == "sjdvp: 0/2 ok, 1 failed; run the same command to resume"


def test_failures_that_are_not_tried_again(sjdvp, out):
    result = sjdvp(
        "generate", "--prompt", "fail", "--prompt", "a cat", "--no-retry-failed", "-o", out
    )
    assert (result.code, last(result.err)) == (1, "sjdvp: 1/2 ok, 1 failed")


def test_settings_reach_the_engine(sjdvp, out, generator):
    sjdvp(
        "generate",
        "--prompt",
        "x",
        "-o",
        out,
        "--decoder",
        "sjdvp",
        "--window",
        "8",
        "--cfg_scale",
        "2",
        "--no-metadata",
    )
    config = generator[0]
    assert (config.decoder.preset, config.decoder.window, config.sampling.cfg_scale) == (
        "sjdvp",
        8,
        2.0,
    )
    assert config.run.metadata is False


def test_dry_run_shows_the_plan_and_writes_nothing(sjdvp, prompts, out, generator):
    arguments = (
        "generate",
        "--prompts",
        prompts,
        "-o",
        out,
        "--dry-run",
        "--shard",
        "1/2",
        "-n",
        "2",
    )
    plan = dict(line.split("\t") for line in sjdvp(*arguments).out.splitlines())
    assert plan["images"] == "2, 0 of them finished"
    assert plan["files"].startswith(
        f"{out / 'images' / '000001_00.png'}, {out / 'images' / '000001_01.png'}"
    )
    assert plan["decoder"] == "best (coupled-vp), window 16, lossless"
    plan = json.loads(sjdvp(*arguments, "--json").out)
    assert (plan["requested"], plan["files"]) == (
        2,
        ["images/000001_00.png", "images/000001_01.png"],
    )
    assert not out.exists()
    assert generator == []


def test_weights_that_are_missing_end_with_2(sjdvp, prompts, out, monkeypatch):
    def open_generator(config):
        raise WeightsError("no weights here", "fetch them")

    monkeypatch.setattr("sjdvp_cli.generate.open_generator", open_generator)
    result = sjdvp("generate", "--prompts", prompts, "-o", out)
    assert result.code == 2
    assert result.err.endswith(
        "sjdvp: error: no weights here\n  fetch them\n"
    )  # the same command would not help


def test_a_full_disk_ends_with_1(sjdvp, out):
    result = sjdvp("generate", "--prompt", "a cat", "--prompt", "full", "-o", out)
    assert result.code == 1
    assert result.err.endswith(
        "sjdvp: error: no space left on the disk\n  make room\n"
        "sjdvp: 1/2 ok; run the same command to resume\n"
    )


def test_a_signal_ends_with_130_and_says_how_to_go_on(sjdvp, out):
    result = sjdvp("generate", "--prompt", "a cat", "--prompt", "ctrl-c", "-o", out)
    assert result.code == 130
    assert last(result.err) == "sjdvp: 1/2 ok, interrupted; run the same command to resume"
    assert "error" not in result.err


def test_other_settings_in_the_same_folder_are_refused(sjdvp, prompts, out):
    sjdvp("generate", "--prompts", prompts, "-o", out)
    result = sjdvp("generate", "--prompts", prompts, "-o", out, "--window", "4")
    assert result.code == 2
    assert "decoder.window" in result.err


def test_prompt_file_with_problems_ends_with_2(sjdvp, tmp_path, out):
    file = tmp_path / "p.csv"
    file.write_text('prompt\n"open\n')
    result = sjdvp("generate", "--prompts", file, "-o", out)
    assert (result.code, out.exists()) == (2, False)


def test_check_show_and_export(sjdvp, prompts, out, tmp_path):
    sjdvp("generate", "--prompts", prompts, "-o", out)
    image = out / "images" / "000001.png"
    assert (sjdvp("check", out).code, sjdvp("check", out).err) == (0, "sjdvp: 3/3 ok\n")
    assert "prompt\ta dog\n" in sjdvp("show", image).out
    assert json.loads(sjdvp("show", image, "--json").out)["prompt"] == "a dog"
    result = sjdvp("export", out, "--layout", "flat", "--to", tmp_path / "flat")
    assert (result.code, result.err) == (0, f"sjdvp: 3 images in {tmp_path / 'flat'}\n")
    image.unlink()
    result = sjdvp("check", out)
    assert (result.code, result.err) == (1, "sjdvp: 2/3 ok, 1 missing\n")
    assert result.out.startswith("missing\timages/000001.png\t")
    assert json.loads(sjdvp("check", out, "--json").out)["expected"] == 3


def test_show_of_a_image_without_settings(sjdvp, prompts, out):
    sjdvp("generate", "--prompts", prompts, "-o", out, "--no-metadata")
    result = sjdvp("show", out / "images" / "000000.png")
    assert (result.code, "holds no settings" in result.err) == (2, True)


def test_prompts(sjdvp, prompts):
    result = sjdvp("prompts", prompts)
    assert result.out == "0\ta cat\n1\ta dog\n2\ta cat\n"
    assert result.err == "sjdvp: 3 prompts (txt), 1 blank line skipped, 1 duplicate\n"
    expected = {"count": 3, "skipped": 1, "duplicates": 1, "format": "txt", "truncated_at": None}
    expected |= {"empty": 0, "notes": []}
    assert json.loads(sjdvp("prompts", prompts, "--json").out) == expected


def test_prompt_files_may_be_several(sjdvp, tmp_path):
    (tmp_path / "a.txt").write_text("a red apple\na blue car\n")
    (tmp_path / "b.txt").write_text("a panda\n")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert sjdvp("prompts", *files).out == "0\ta red apple\n1\ta blue car\n2\ta panda\n"
    flags = ["--prompts", files[0], "--prompts", files[1], "--dry-run", "--json"]
    planned = json.loads(sjdvp("generate", *flags, "-o", tmp_path / "out").out)
    assert (planned["requested"], planned["format"]) == (3, "txt")
    unset = sjdvp("generate", "--prompts", "", "-o", tmp_path / "out", "--dry-run")
    assert (unset.code, "--prompts is empty" in unset.err) == (2, True)
    mixed = sjdvp("prompts", files[0], "-")
    assert (mixed.code, "stdin (-) is not read together with files" in mixed.err) == (2, True)


def test_reading_flags_reach_the_reader(sjdvp, tmp_path):
    (tmp_path / "c.txt").write_text("1.jpg|a woman\n2.jpg|\n3.jpg|a girl\n")
    refused = sjdvp("prompts", tmp_path / "c.txt")
    assert (refused.code, "--delimiter '|' --no-header --column 2" in refused.err) == (2, True)
    flags = ["--delimiter", "|", "--no-header", "--column", "text", "--column", "2"]
    more = ["--id-column", "1", "--skip-empty", "--template", "{prompt}, flat"]
    result = sjdvp("prompts", tmp_path / "c.txt", *flags, *more)
    assert result.out == "0\t1.jpg\ta woman, flat\n1\t3.jpg\ta girl, flat\n"
    assert result.err == "sjdvp: 2 prompts (csv), 1 row without a prompt skipped\n"
    without = sjdvp("prompts", tmp_path / "c.txt", *flags, "--skip-empty", "--no-ids")
    assert without.out == "0\ta woman\n1\ta girl\n"


def test_what_a_folder_leaves_out_is_told(sjdvp, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "1.txt").write_text("a cat")
    (tmp_path / "set" / "1.jpg").write_bytes(b"x")
    result = sjdvp("prompts", tmp_path / "set")
    assert "sjdvp: warning: left out of set: 1.jpg\n" in result.err
    planned = sjdvp("generate", "--prompts", tmp_path / "set", "-o", tmp_path / "o", "--dry-run")
    assert "left out of set: 1.jpg" in planned.out
    made = sjdvp("generate", "--prompts", tmp_path / "set", "-o", tmp_path / "o", "-q")
    assert (made.code, "left out of set: 1.jpg" in made.err) == (0, True)


def test_every_format_of_the_library_is_a_choice():
    from typing import get_args

    from sjdvp.runs.prompts import FORMATS
    from sjdvp_cli.prompts import Format

    assert get_args(Format) == FORMATS


def test_doctor_without_weights(sjdvp, tmp_path):
    result = sjdvp("doctor", "--model", tmp_path, "--json")
    assert result.code == 2
    assert "no sjdvp.json" in json.loads(result.out)["ready"]
    assert "unknown backbone" in sjdvp("doctor", "--set", "model.backbone=other").out


@pytest.mark.process
def test_doctor_finds_weights_as_a_run_does(sjdvp, tmp_path):
    from tests.engine.tiny import save_tiny_model

    tiny = save_tiny_model(tmp_path / "tiny")
    found = json.loads(sjdvp("doctor", "--model", tiny, "--device", "cpu", "--json").out)
    assert found["ready"] == "yes"
    assert found["weights"] == str(tiny)
    assert found["memory"].endswith("for the weights")
    assert int(found["largest batch"]) > 1000
    not_here = sjdvp("doctor", "--profile", "lumina-mgpt-7b-768", "--model", "owner/nothing")
    assert not_here.code == 2
    assert "hf download owner/nothing" in not_here.out
