"""Models without a VQ decoder: their tokens are the result, and no image is missing."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sjdvp.config import ModelConfig, RunConfig, RunSettings
from sjdvp.errors import ConfigError
from sjdvp.events import ignore
from sjdvp.generate import Request, generate
from sjdvp.jobs import Job
from sjdvp.pixels import complete_run
from sjdvp.report.load import load_runs
from sjdvp.runs.check import check_folder
from sjdvp.runs.export import export_folder
from sjdvp.runs.folder import RunFolder
from sjdvp.runs.tokens import tokens_files
from sjdvp.slurm.queue import shard_states
from sjdvp_cli.app import run as command
from tests.fake_generator import FakeGenerator, noise, rows, run, tokens_of

N = 3


@pytest.fixture
def glm(tmp_path: Path) -> Request:
    model = ModelConfig(backbone="glm-image", width=64, height=64)
    config = RunConfig(model=model, run=RunSettings(seed=7, save_tokens=True))
    return Request(config, tmp_path / "out", inline=tuple(f"prompt {i}" for i in range(N)))


def test_tokens_are_the_result(glm, capsys):
    summary = run(glm)
    assert (summary.ok, summary.failed, summary.exit_code) == (N, 0, 0)
    assert {(row["status"], row["file"], row["error"]) for row in rows(glm.out)} == {
        ("tokens", None, None)
    }
    assert list((glm.out / "images").iterdir()) == []
    assert command(["check", str(glm.out)]) == 0
    assert f"{N}/{N} ok, {N} of them tokens only" in capsys.readouterr().err
    assert check_folder(glm.out).as_json()["tokens_only"] == N


def test_a_resumed_run_counts_them_as_done(glm):
    run(glm)
    generator = FakeGenerator()
    summary = run(glm, generator)
    assert (summary.skipped, summary.exit_code, generator.generated) == (N, 0, [])
    (state,) = shard_states(glm.out, 1, [])
    assert (state.expected, state.done, state.failed) == (N, N, 0)


def test_lost_tokens_are_missing_and_made_again(glm):
    run(glm)
    (file,) = tokens_files(glm.out)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    lost = check_folder(glm.out)
    assert [finding.reason for finding in lost.missing] == ["its image tokens are not saved"]
    generator = FakeGenerator()
    assert run(glm, generator).exit_code == 0
    assert len(generator.generated) == 1
    assert check_folder(glm.out).whole


def test_damaged_tokens_are_corrupt(glm):
    run(glm)
    (file,) = tokens_files(glm.out)
    first, *others = file.read_text().splitlines(keepends=True)
    damaged = json.dumps({**json.loads(first), "tokens": "AAAA"})
    file.write_text("".join([damaged + "\n", *others]))
    assert len(check_folder(glm.out).corrupt) == 1


def test_it_is_refused_without_save_tokens_before_a_folder_is_made(glm):
    settings = replace(glm.config, run=replace(glm.config.run, save_tokens=False))
    with pytest.raises(ConfigError, match="has no VQ decoder") as caught:
        generate(replace(glm, config=settings), FakeGenerator().open, ignore)
    assert "--save-tokens" in caught.value.hint
    assert not glm.out.exists()


def test_decode_makes_the_images(glm):
    run(glm)
    seeds = [(entry.key, row["seed"]) for entry, row in RunFolder.read(glm.out).rows()]
    jobs = [Job(*key, seed, "") for key, seed in seeds]
    known = {tokens_of(job): noise(job) for job in jobs}
    decoder = contextlib.nullcontext(known.__getitem__)
    assert complete_run(glm.out, lambda config: decoder, lambda decoded: None).written == N
    last = RunFolder.read(glm.out).log()
    assert {entry.status for entry in last.values()} == {"ok"}
    found = check_folder(glm.out)
    assert (found.ok, found.tokens_only, found.whole) == (N, 0, True)
    assert run(glm).skipped == N


def test_reports_count_them_and_exports_name_them(glm, tmp_path):
    run(glm)
    (found,) = load_runs([glm.out])
    assert (len(found.ok), found.failed) == (N, [])
    assert export_folder(glm.out, tmp_path / "flat", "flat").left_out == tuple(
        f"row {i}, sample 0: tokens only, no image" for i in range(N)
    )
