"""Rows with their own guidance, with the embedded model."""

import json
import shlex

import pytest

from sjdvp.runs.jsonl import read_rows

LOG = "log.shard-000-of-001.jsonl"
RECORDS = [
    {"prompt": "a red apple", "seed": 1},
    {"prompt": "a red apple", "seed": 1, "cfg_scale": 4},
    {"prompt": "a red apple", "seed": 1, "negative_prompt": 'a "red" apple, $HOME'},
    {"prompt": "a red apple", "seed": 1, "size": 128},
]


@pytest.mark.process
def test_rows_are_generated_as_asked_and_the_shown_command_makes_them_again(
    sjdvp, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(r) + "\n" for r in RECORDS))
    assert sjdvp("generate", "--prompts", "p.jsonl", "--batch-size", "3", "-o", "a").code == 0
    digest = {row["index"]: row["token_sha256"] for row in read_rows(tmp_path / "a" / LOG)}
    assert digest[3] == digest[0] and len({digest[i] for i in range(3)}) == 3
    for index in (1, 2):
        command = sjdvp("show", f"a/images/00000{index}.png").out.splitlines()[-1]
        words = shlex.split(command)
        assert sjdvp(*words[1:-1], f"again{index}").code == 0
        (again,) = read_rows(tmp_path / f"again{index}" / LOG)
        assert again["token_sha256"] == digest[index]


def test_a_size_that_the_model_does_not_have_names_row_and_column(sjdvp, tmp_path):
    (tmp_path / "p.csv").write_text("prompt,size\na cat,\na dog,512x512\n")
    result = sjdvp("generate", "--prompts", tmp_path / "p.csv", "-o", tmp_path / "a")
    assert result.code == 2
    assert "row 1, column 'size': no images of 512x512 pixels" in result.err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--negative-prompt", "x", "--cfg-scale", "1"), "does nothing at sampling.cfg_scale 1"),
        (("--negative-prompt", "x", "-p", "janus-pro-1b"), "janus models take no negative prompt"),
        (("--min-p", "2"), "sampling.min_p must be between 0 (off) and 1"),
    ],
)
def test_guidance_that_cannot_be_is_refused_by_name(sjdvp, tmp_path, flags, message):
    result = sjdvp("generate", "--prompt", "a", *flags, "-o", tmp_path / "a")
    assert (result.code, message in result.err) == (2, True), result.err
