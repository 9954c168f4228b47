"""A run that came to nothing binds nobody: after a mistake in the settings the corrected command
takes the same folder.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sjdvp.compare import compare
from sjdvp.config import DecoderConfig, ModelConfig, RunConfig, RunSettings
from sjdvp.errors import FolderError, WeightsError
from sjdvp.events import ignore
from sjdvp.generate import Request, generate
from sjdvp.runs.check import check_folder
from sjdvp.runs.locks import FileLock, is_locked, shard_lock
from sjdvp.runs.run_json import read_run
from sjdvp.runs.sharding import Shard
from tests.fake_engines import Engines
from tests.fake_engines import request as comparison
from tests.fake_generator import FakeGenerator

WRONG = RunConfig(model=ModelConfig(path="/nope"), run=RunSettings(seed=7))
RIGHT = RunConfig(run=RunSettings(seed=8))


def no_weights(config):
    raise WeightsError("/nope: no such file or folder")


def run(out: Path, config: RunConfig, *prompts: str, open_generator=None):
    return generate(
        Request(config, out, inline=prompts or ("a cat",)),
        open_generator or FakeGenerator().open,
        ignore,
    )


def test_other_settings_and_prompts_after_nothing_was_generated(tmp_path):
    with pytest.raises(WeightsError):
        run(tmp_path, WRONG, open_generator=no_weights)
    assert run(tmp_path, RIGHT, "a dog", "a cow").ok == 2
    assert check_folder(tmp_path).whole
    assert json.loads((tmp_path / "run.json").read_text())["seed"] == 8
    with pytest.raises(FolderError, match=r"model\.path"):
        run(tmp_path, WRONG, "a dog", "a cow")


def test_the_same_settings_keep_their_seed(tmp_path):
    """As a job array needs it: the second process takes what the first one has written."""
    config = replace(WRONG, run=RunSettings())
    seeds = set()
    for _ in range(2):
        with pytest.raises(WeightsError):
            run(tmp_path, config, open_generator=no_weights)
        seeds.add(json.loads((tmp_path / "run.json").read_text())["seed"])
    assert len(seeds) == 1


def test_a_failed_image_is_a_row_and_binds(tmp_path):
    run(tmp_path, RIGHT, "fail here")
    with pytest.raises(FolderError, match=r"decoder\.window"):
        run(tmp_path, replace(RIGHT, decoder=DecoderConfig(window=4)))


def test_a_run_at_work_on_its_first_image_binds(tmp_path):
    def meanwhile(config):
        assert is_locked(tmp_path)
        with pytest.raises(FolderError, match=r"model\.path"):
            run(tmp_path, WRONG)
        return FakeGenerator().open(config)

    assert run(tmp_path, RIGHT, open_generator=meanwhile).ok == 1
    assert not is_locked(tmp_path)


def test_run_json_is_read_once_and_the_shard_is_locked_with_the_folder(tmp_path, monkeypatch):
    """So no other process can make the folder anew between the check and the lock."""
    reads, held = [], []

    def read(root):
        reads.append(root)
        return read_run(root)

    def lock(root, shard, tell):
        held.append(FileLock(root / ".lock").is_held())
        return shard_lock(root, shard, tell)

    monkeypatch.setattr("sjdvp.runs.folder.read_run", read)
    monkeypatch.setattr("sjdvp.runs.folder.shard_lock", lock)
    for _ in range(2):
        run(tmp_path, RIGHT)
    assert (len(reads), held) == (2, [True, True])


def test_a_comparison_too(tmp_path):
    def broken(configs):
        raise WeightsError("no weights")

    with pytest.raises(WeightsError):
        compare(comparison(tmp_path, "ar,sjd", **{"sampling.temperature": 0.5}), broken, ignore)
    assert compare(comparison(tmp_path, "ar,sjd", ("a dog",)), Engines().open, ignore).ok == 2


def test_a_lock_that_was_let_go_says_so(tmp_path):
    """Also when writing the note beside it fails: the next run must not hear of a holder."""
    code = "from pathlib import Path; from sjdvp.runs import locks\n"
    code += "from sjdvp.runs.sharding import Shard\n"
    code += "def interrupted(path, data): path.write_bytes(data); raise KeyboardInterrupt\n"
    code += "locks.write_atomic = interrupted\n"
    code += f"with locks.shard_lock(Path({str(tmp_path)!r}), Shard()): pass"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        != 0
    )
    with shard_lock(tmp_path, Shard()) as lock:
        assert lock.left_by == ""
