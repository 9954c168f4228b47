"""The main job, with a fake generator: what is on disk after it."""

import dataclasses
import hashlib
import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sjdvp.config import DecoderConfig, ModelConfig, RunConfig, RunSettings
from sjdvp.errors import ConfigError, FolderError, PromptError
from sjdvp.events import (
    GenerationStarted,
    ImageFinished,
    ImagesInProgress,
    RunFinished,
    RunStarted,
)
from sjdvp.generate import Preview, Request, preview
from sjdvp.jobs import Job
from sjdvp.runs.check import check_folder
from sjdvp.runs.jsonl import read_rows
from sjdvp.runs.log import KEYS
from sjdvp.runs.sharding import Selection, Shard, log_paths
from sjdvp.runs.writer import read_metadata
from tests.fake_generator import FakeGenerator, config, images, noise, rows, run

TEXTS = ["a red apple", "two\u2028cats", "fail here", "0", "a red apple", "plum", "fig"]


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def test_images_rows_and_summary(tmp_path, prompts):
    out, events = tmp_path / "out", []
    summary = run(
        Request(config(), out, prompts=prompts, argv=("sjdvp", "generate")), listen=events.append
    )
    assert (summary.requested, summary.ok, summary.failed, summary.skipped, summary.exit_code) == (
        7,
        6,
        1,
        0,
        1,
    )
    assert (summary.nfe_mean, summary.accept_rate) == (10, 0.5)
    assert list(images(out)) == [f"{i:06d}.png" for i in (0, 1, 3, 4, 5, 6)]
    by_index = {row["index"]: row for row in rows(out)}
    assert len(rows(out)) == len(by_index) == 7
    assert all(tuple(row) == KEYS for row in rows(out))
    assert [by_index[i]["prompt"] for i in range(7)] == TEXTS
    assert (by_index[2]["status"], by_index[2]["file"], by_index[2]["tokens_per_nfe"]) == (
        "failed",
        None,
        None,
    )
    assert by_index[2]["error"] == {"type": "Bad", "message": "no image", "hint": ""}
    assert by_index[0]["seed"] != by_index[4]["seed"]
    with Image.open(out / "images/000003.png") as image:
        assert (np.asarray(image) == noise(Job(3, 0, by_index[3]["seed"], "0"))).all()
    assert isinstance(events[0], RunStarted)
    assert (events[0].total, events[0].done) == (7, 0)
    assert sum(isinstance(event, ImageFinished) for event in events) == 7
    assert events[-1] == RunFinished(summary.as_json())


def test_rate_counts_from_the_first_forward_pass(tmp_path, ten_prompts):
    events = []

    class SlowToOpen(FakeGenerator):
        """Loads for 0.4 s, of which 0.1 s are compilation."""

        def generate(self, source):
            time.sleep(0.4)
            source = Watched(source)
            for image in super().generate(source):
                yield dataclasses.replace(image, stats={**image.stats, "compile_s": 0.1})

    class Watched:
        def __init__(self, source):
            self.source = source

        def take(self, *, wait):
            job = self.source.take(wait=wait)
            self.source.report(0.5)
            return job

    summary = run(
        Request(config(), tmp_path / "out", prompts=ten_prompts),
        SlowToOpen(seconds=0.05),
        events.append,
    )
    assert 0.3 <= summary.load_s < summary.wall_s - 0.1
    assert summary.compile_s == 0.1
    generation_s = summary.wall_s - summary.load_s - summary.compile_s
    assert summary.images_per_s == pytest.approx(10 / generation_s)
    kinds = [type(event) for event in events]
    assert kinds.index(GenerationStarted) < kinds.index(ImagesInProgress)
    assert kinds.count(GenerationStarted) == 1
    assert "compile_s" not in rows(tmp_path / "out")[0]


def test_run_json_and_prompts_jsonl(tmp_path, prompts):
    out = tmp_path / "out"
    run(Request(config(seed=None), out, prompts=prompts, argv=("sjdvp", "generate")))
    info = json.loads((out / "run.json").read_text())
    assert info["argv"] == ["sjdvp", "generate"]
    assert info["fingerprint"] == config().fingerprint()
    assert info["prompts"] == {
        "source": "prompts.txt",
        "format": "txt",
        "count": 7,
        "sha256": hashlib.sha256(prompts.read_bytes()).hexdigest(),
    }
    assert 0 <= info["seed"] < 2**32
    assert [row["prompt"] for row in read_rows(out / "prompts.jsonl")] == TEXTS


def test_again_does_nothing_and_opens_no_generator(tmp_path, ten_prompts):
    out, generator = tmp_path / "out", FakeGenerator()
    request = Request(config(seed=None), out, prompts=ten_prompts)
    run(request, generator)
    before = images(out)
    summary = run(request, generator)
    assert (summary.ok, summary.skipped, summary.exit_code, generator.opened) == (0, 10, 0, 1)
    assert images(out) == before
    assert run(dataclasses.replace(request, shard=Shard(20, 21))).exit_code == 0


def test_failed_images_are_tried_again_or_not(tmp_path, prompts):
    request = Request(config(), tmp_path / "out", prompts=prompts)
    run(request)
    again = FakeGenerator()
    assert run(dataclasses.replace(request, retry_failed=False), again).failed == 1
    assert again.generated == []
    run(request, again)
    assert [job.index for job in again.generated] == [2]
    assert [row["attempt"] for row in rows(request.out) if row["index"] == 2] == [1, 2]


def test_overwrite_generates_the_same_images_again(tmp_path, ten_prompts):
    request = Request(config(), tmp_path / "out", prompts=ten_prompts)
    run(request)
    before = images(request.out)
    generator = FakeGenerator()
    run(dataclasses.replace(request, overwrite=True), generator)
    assert len(generator.generated) == 10
    assert images(request.out) == before
    assert check_folder(request.out).whole


@pytest.mark.parametrize("count", [1, 2, 3])
def test_images_do_not_depend_on_batch_shards_or_resume(tmp_path, ten_prompts, count):
    whole = Request(config(num_images_per_prompt=2), tmp_path / "whole", prompts=ten_prompts)
    run(whole, FakeGenerator(batch=1))
    part = dataclasses.replace(whole, out=tmp_path / "part")
    run(dataclasses.replace(part, selection=Selection(limit=3)), FakeGenerator(batch=4))
    for index in range(count):
        run(dataclasses.replace(part, shard=Shard(index, count)), FakeGenerator(batch=8))
    assert images(part.out) == images(whole.out)
    assert len(images(whole.out)) == 20
    assert "000003_01.png" in images(whole.out)
    assert len(rows(part.out)) == 20
    assert check_folder(part.out).whole


def test_lost_truncated_and_torn_things_are_generated_again(tmp_path, ten_prompts):
    request = Request(config(), tmp_path / "out", prompts=ten_prompts)
    run(request)
    before = images(request.out)
    (request.out / "images/000001.png").unlink()
    (request.out / "images/000002.png").write_bytes(b"short")
    log = log_paths(request.out)[0]
    log.write_bytes(log.read_bytes()[:-20])
    lost = {1, 2, json.loads(log_paths(request.out)[0].read_bytes().splitlines()[0])["index"]} - {0}
    generator = FakeGenerator()
    run(request, generator)
    assert {1, 2} <= {job.index for job in generator.generated}
    assert len(generator.generated) == 3
    assert lost
    assert images(request.out) == before


def test_images_may_be_a_link_to_another_disk_from_the_start(tmp_path, ten_prompts):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "images").symlink_to(tmp_path / "scratch")
    run(Request(config(), tmp_path / "out", prompts=ten_prompts))
    assert len(list((tmp_path / "scratch").iterdir())) == 10
    assert check_folder(tmp_path / "out").whole
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / "images").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FolderError, match=r"images is not a folder"):
        run(Request(config(), tmp_path / "dangling", prompts=ten_prompts))


def test_metadata_in_the_image_and_without(tmp_path, ten_prompts):
    with_it, without = (
        Request(config(metadata=m), tmp_path / str(m), prompts=ten_prompts) for m in (True, False)
    )
    for request in (with_it, without):
        run(request)
    stored = read_metadata(with_it.out / "images/000003.png")
    assert stored["sjdvp"]["prompt"] == "prompt 3"
    assert not {"host", "pid", "file", "started_at", "latency_s"} & set(stored["sjdvp"])
    assert stored["parameters"].startswith(
        "prompt 3\nSteps: 64, Sampler: best, CFG scale: 1.0, Seed: "
    )
    assert read_metadata(without.out / "images/000003.png") == {}
    with pytest.raises(FolderError, match="not a readable image"):
        read_metadata(ten_prompts)
    again = dataclasses.replace(without, out=tmp_path / "again")
    run(again, FakeGenerator(batch=2))
    assert images(again.out) == images(without.out)


def test_other_settings_are_refused_by_name(tmp_path, ten_prompts):
    request = Request(config(), tmp_path / "out", prompts=ten_prompts)
    run(request)
    other = RunConfig(decoder=DecoderConfig(window=8), run=RunSettings(seed=8))
    generator = FakeGenerator()
    with pytest.raises(
        FolderError, match=r"(?s)decoder\.window: 16 there, 8 now.*run\.seed: 7 there, 8 now"
    ):
        run(dataclasses.replace(request, config=other), generator)
    assert generator.opened == 0
    faster = dataclasses.replace(request, config=config(batch_size=4, device="cpu"))
    assert run(faster).skipped == 10


def test_prompts_may_grow_but_not_change(tmp_path, ten_prompts):
    request = Request(config(), tmp_path / "out", prompts=ten_prompts)
    run(request)
    ten_prompts.write_text(ten_prompts.read_text() + "one more\n")
    assert (run(request).ok, run(request).skipped) == (1, 11)
    ten_prompts.write_text(ten_prompts.read_text().replace("prompt 3", "prompt three"))
    with pytest.raises(
        FolderError, match=r"row 3 .* has changed .*prompt was 'prompt 3', is 'prompt three'"
    ):
        run(request)
    assert len(list(read_rows(request.out / "prompts.jsonl"))) == 11


def test_checks_come_before_the_generator(tmp_path, ten_prompts):
    generator = FakeGenerator()
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    (tmp_path / "stranger" / "images").mkdir(parents=True)
    (tmp_path / "stranger" / "images" / "a.png").touch()
    (tmp_path / "file").touch()
    for request, error in [
        (Request(config(), tmp_path / "out", prompts=tmp_path / "bad.txt"), PromptError),
        (Request(config(), tmp_path / "stranger", prompts=ten_prompts), FolderError),
        (Request(config(), tmp_path / "file", prompts=ten_prompts), FolderError),
        (
            Request(
                config(), tmp_path / "out", prompts=ten_prompts, selection=Selection(((10, 10),))
            ),
            ConfigError,
        ),
    ]:
        with pytest.raises(error) as caught:
            run(request, generator)
        assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match="one place"):
        Request(config(), tmp_path / "out", prompts=ten_prompts, inline=("a",))
    with pytest.raises(ConfigError, match="pipe"):
        Request(config(), tmp_path / "out", stdin=io.BytesIO(), shard=Shard(0, 2))
    assert generator.opened == 0
    assert not (tmp_path / "out").exists()


def test_preview_writes_nothing(tmp_path, ten_prompts):
    request = Request(
        config(num_images_per_prompt=2), tmp_path / "out", prompts=ten_prompts, shard=Shard(1, 2)
    )
    files = tuple(f"images/{name}.png" for name in ("000001_00", "000001_01", "000003_00"))
    assert preview(request) == Preview(10, 0, 7, "txt", 0, 0, files=files)
    assert not request.out.exists()
    run(dataclasses.replace(request, selection=Selection(limit=4)))
    assert preview(request).done == 4
    assert preview(Request(config(), tmp_path / "new", stdin=io.BytesIO())).requested is None


def test_the_opening_says_towards_which_weights_a_decoder_is_lossless(tmp_path):
    events = []
    quantized = dataclasses.replace(config(), model=ModelConfig(quantize="int8"))
    run(Request(quantized, tmp_path / "out", inline=("a cat",)), listen=events.append)
    (opening,) = [event for event in events if isinstance(event, RunStarted)]
    assert opening.lossless == "lossless to int8 weights"
