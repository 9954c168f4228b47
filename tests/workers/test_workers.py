"""Several processes for one run: every image comes out right, whichever of them dies on the way."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from sjdvp.config import RunConfig, RunSettings
from sjdvp.errors import DeviceError, WeightsError
from sjdvp.events import ignore
from sjdvp.generate import Request, generate
from sjdvp.jobs import Job, JobList
from sjdvp.runs.check import check_folder
from sjdvp.runs.jsonl import read_rows
from sjdvp.runs.signals import STOPPING
from sjdvp.workers.pool import Workers, _Worker, open_workers
from sjdvp.workers.process import _with_own_gpu
from tests.fake_generator import FakeGenerator, images
from tests.workers.generators import (
    open_obedient,
    open_picky,
    open_quick,
    open_timed,
    open_without_weights,
)

pytestmark = pytest.mark.process


class PoolRun:
    def __init__(
        self,
        folder: Path,
        prompts: list[str],
        n_workers: int = 2,
        open_generator=open_obedient,
        devices=(),
        notes=None,
    ):
        self.out, self.notes = folder / "out", [] if notes is None else notes
        file = folder / "prompts.txt"
        file.write_text("".join(f"{prompt}\n" for prompt in prompts), encoding="utf-8")
        request = Request(RunConfig(run=RunSettings(seed=1)), self.out, prompts=file)
        devices = devices or ["cpu"] * n_workers
        self.summary = generate(
            request,
            partial(
                open_workers, devices=devices, open_generator=open_generator, tell=self.notes.append
            ),
            ignore,
        )

    @property
    def rows(self):
        return {row["index"]: row for row in read_rows(self.out / "log.shard-000-of-001.jsonl")}


def test_the_same_images_as_one_process(tmp_path):
    prompts = [f"prompt {i}" for i in range(20)]
    (tmp_path / "many").mkdir()
    run = PoolRun(tmp_path / "many", prompts, n_workers=3)
    assert (run.summary.ok, run.notes) == (20, [])
    one = Request(
        RunConfig(run=RunSettings(seed=1)),
        tmp_path / "one",
        prompts=tmp_path / "many" / "prompts.txt",
    )
    generate(one, FakeGenerator().open, ignore)
    assert images(tmp_path / "one") == images(run.out)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("die", "ended with exit code 3"),
        ("segfault", "died of SIGSEGV"),
        ("kill", "was killed"),
        ("raise", "RuntimeError: the device is on fire"),
    ],
)
def test_images_of_a_dead_worker_are_generated_by_others(tmp_path, how, told):
    prompts = [f"prompt {i}" for i in range(8)]
    prompts[3] = f"{how} {tmp_path / 'once'}"
    run = PoolRun(tmp_path, prompts)
    assert (run.summary.ok, run.summary.failed) == (8, 0)
    assert len(run.notes) == 1
    assert told in run.notes[0]
    assert check_folder(run.out).whole


def test_an_image_that_kills_every_worker_fails_and_no_other_does(tmp_path):
    prompts = [f"prompt {i}" for i in range(10)]
    prompts[2] = prompts[3] = prompts[7] = "kill"
    run = PoolRun(tmp_path, prompts)
    assert (run.summary.ok, run.summary.failed) == (7, 3)
    assert {index for index, row in run.rows.items() if row["status"] == "failed"} == {2, 3, 7}
    error = run.rows[2]["error"]
    assert error["type"] == "WorkerDied"
    assert "3 workers that tried it was killed" in error["message"]


def test_a_lost_device_is_left_out(tmp_path):
    run = PoolRun(
        tmp_path, ["sleep 0.1"] * 12, open_generator=open_picky, devices=["cuda:0", "cuda:1"]
    )
    assert run.summary.ok == 12
    assert all(
        note.startswith("worker 1 (cuda:1) broke (RuntimeError: this device is lost)")
        for note in run.notes
    )


def test_no_worker_left(tmp_path):
    notes = []
    with pytest.raises(DeviceError, match="all workers have died"):
        PoolRun(tmp_path, ["prompt"], open_generator=open_picky, devices=["cuda:1"], notes=notes)
    assert [note.split("; ")[1].split("\n")[0] for note in notes] == [
        *["its images are generated again"] * 2,
        "it is not replaced",
    ]
    assert "3 times in a row" in notes[-1]


def test_what_is_wrong_for_all_workers_ends_the_run(tmp_path):
    with pytest.raises(WeightsError, match="no weights here"):
        PoolRun(tmp_path, ["prompt"], open_generator=open_without_weights)


def test_stdout_belongs_to_the_parent(tmp_path, capfd):
    PoolRun(tmp_path, ["print something that a library might say"], n_workers=1)
    said = capfd.readouterr()
    assert said.out == ""
    assert "a library might say" in said.err


def test_work_is_shared_evenly(tmp_path):
    """100 images of uneven length on 3 workers: from when all are there, they idle for at most a
    tenth of the time.
    """
    seconds = [
        0.05 * (1 + i % 7) for i in range(100)
    ]  # long against what a busy machine takes to pass a job on
    run = PoolRun(tmp_path, [f"sleep {s}" for s in seconds], n_workers=3, open_generator=open_timed)
    assert run.summary.ok == 100
    spans = [[float(word) for word in row["gpu"].split()] for row in run.rows.values()]
    workers = {
        worker: sorted((start, end) for who, start, end in spans if who == worker)
        for worker, _, _ in spans
    }
    assert len(workers) == 3
    begin, end = max(own[0][0] for own in workers.values()), max(end for _, _, end in spans)
    busy = sum(max(0.0, stop - max(begin, start)) for _, start, stop in spans)
    idle = 1 - busy / (3 * (end - begin))
    print(f"idle {100 * idle:.1f} % of {end - begin:.1f} s")
    assert idle <= 0.1


def test_signals_are_held_back_from_the_first_moment():
    """A worker that is still starting must not end in a KeyboardInterrupt: the first one too, in a
    process that never had any.
    """
    told = subprocess.run(
        [sys.executable, "-m", "tests.workers.masks"], capture_output=True, text=True, check=True
    ).stdout
    masks = [int(mask, 16) for mask in re.findall(r"^SigBlk:\s*(\w+)$", told, re.MULTILINE)]
    assert len(masks) == 2
    assert all(mask >> signum - 1 & 1 for mask in masks for signum in STOPPING)


def test_few_images_are_shared_by_all_workers():
    """32 images on 8 GPUs with room for 16 each: every worker gets 4."""
    jobs = [Job(i, 0, i, "") for i in range(32)]
    workers = Workers(RunConfig(), [f"cuda:{i}" for i in range(8)], open_quick, print)
    queue = JobList(jobs)
    for number in range(8):
        pipe = SimpleNamespace(send=lambda job: None)
        workers._workers[number] = _Worker(f"cuda:{number}", None, pipe)
    for worker in workers._workers.values():  # each fills its batch slots, one after the other
        for _ in range(16):
            workers._answer(worker, workers._next(worker, queue), wait=False)
    assert [len(worker.held) for worker in workers._workers.values()] == [4] * 8


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "3"}),
        ({"CUDA_VISIBLE_DEVICES": "5,6,7,2"}, {"CUDA_VISIBLE_DEVICES": "2"}),
        ({"HIP_VISIBLE_DEVICES": "5,6,7,2"}, {"HIP_VISIBLE_DEVICES": "2"}),  # ROCm
    ],
)
def test_a_worker_sees_its_gpu_alone(monkeypatch, visible, expected):
    environment = dict(visible)
    monkeypatch.setattr(os, "environ", environment)
    config = _with_own_gpu(replace(RunConfig(), run=RunSettings(device="cuda:3")))
    assert (config.run.device, environment) == ("cuda:0", expected)
