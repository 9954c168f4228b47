"""Which devices `--gpus` and `--workers` mean. What the processes then do: tests/workers."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sjdvp.config import RunConfig, RunSettings
from sjdvp.engine import devices
from sjdvp.errors import ConfigError
from sjdvp.events import Note
from sjdvp_cli import processes
from sjdvp_cli.processes import Processes, parse_gpus


@pytest.mark.parametrize(
    ("text", "numbers"), [("all", []), ("1", [0]), ("3", [0, 1, 2]), ("0,2", [0, 2]), ("2,", [2])]
)
def test_gpus_are_counted_or_named(text, numbers):
    assert parse_gpus(text) == numbers


@pytest.mark.parametrize("text", ["", "0", "-1", "1,1", "0,a", "GPU-4f2c", "all,0", "\u0663"])
def test_gpus_that_name_none(text):
    with pytest.raises(ConfigError, match="--gpus"):
        parse_gpus(text)


def test_devices_are_logical_whatever_the_environment_calls_them(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1d0d3c,GPU-8932f9")
    monkeypatch.setattr(processes, "_visible_gpus", lambda: 2)
    assert Processes(gpus="all").devices(RunConfig()) == ["cuda:0", "cuda:1"]
    assert Processes(gpus="1,").devices(RunConfig()) == ["cuda:1"]
    assert Processes(workers=3).devices(RunConfig(run=RunSettings(device="cpu"))) == [
        "cpu",
        "cpu",
        "cpu",
    ]


def test_device_and_gpus_exclude_each_other():
    with pytest.raises(ConfigError, match="both set devices"):
        Processes(gpus="2").devices(RunConfig(run=RunSettings(device="cpu")))


def test_this_process_generates_and_says_how_when_no_others_are_asked_for():
    heard = []
    engine = SimpleNamespace(description="emoji on cpu, fp32, batch 4")
    opened = Processes().generator(RunConfig(), lambda config: nullcontext(engine), heard.append)
    with opened(RunConfig()) as generator:
        assert generator is engine
    assert heard == [Note("info", "emoji on cpu, fp32, batch 4")]


def test_gpus_that_do_not_exist_are_told_before_a_folder_is_made(sjdvp, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 0)
    result = sjdvp("generate", "--prompt", "a", "-o", tmp_path / "o", "--gpus", "all")
    assert result.code == 2 and "this process sees no GPU" in result.err
    assert not (tmp_path / "o").exists()


def test_a_shared_model_is_one_process(sjdvp, tmp_path):
    result = sjdvp(
        "generate", "--prompt", "a", "-o", tmp_path / "o", "--device-map", "auto", "--workers", "2"
    )
    assert result.code == 2
    assert "--device-map auto is one process on all GPUs" in result.err
