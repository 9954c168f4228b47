"""The command that `sjdvp show` prints makes the image again, with the embedded model."""

import json
import shlex

import numpy as np
import pytest

from sjdvp.runs.jsonl import read_rows
from sjdvp.runs.writer import encode_png

LOG = "log.shard-000-of-001.jsonl"


@pytest.mark.process
def test_the_command_gives_the_same_tokens(sjdvp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ("--set", "decoder.window=8", "--cfg-scale", "2", "--seed", "1", "-n", "3")
    prompts = ("--prompt", "a red apple", "--prompt", '--x "q" $HOME')
    assert sjdvp("generate", *prompts, *flags, "--indices", "1", "-o", "a").code == 0
    by_sample = {row["sample"]: row for row in read_rows(tmp_path / "a" / LOG)}
    shown = sjdvp("show", "a/images/000001_02.png")
    command = shlex.split(shown.out.splitlines()[-1])
    assert command[0] == "sjdvp"
    assert sjdvp(*command[1:]).code == 0
    (again,) = read_rows(tmp_path / "again" / LOG)
    assert again["token_sha256"] == by_sample[2]["token_sha256"]
    assert again["prompt"] == by_sample[2]["prompt"]


@pytest.mark.process
def test_settings_that_are_incomplete_give_no_command(sjdvp, tmp_path):
    assert sjdvp("generate", "--prompt", "a cat", "-o", tmp_path / "a").code == 0
    image = tmp_path / "a/images/000000.png"
    row = json.loads(sjdvp("show", image, "--json").out)
    del row["params"]["cfg_scale"]
    stored = tmp_path / "stored.png"
    stored.write_bytes(encode_png(np.zeros((8, 8, 3), np.uint8), {"sjdvp": json.dumps(row)}))
    result = sjdvp("show", stored)
    assert result.code == 0
    assert "no command to generate it again" in result.err
