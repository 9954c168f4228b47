"""Images that are generated again: --overwrite, --reroll, --update-prompts; and one image alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sjdvp.config import RunConfig, RunSettings
from sjdvp.errors import ConfigError, FolderError
from sjdvp.events import ImageFinished, ignore
from sjdvp.generate import Request, generate, preview
from sjdvp.runs.check import check_folder
from sjdvp.runs.folder import RunFolder
from sjdvp.runs.sharding import Selection, Shard, log_path
from tests.fake_generator import FakeGenerator, images

N = 6


@pytest.fixture
def request_(tmp_path) -> Request:
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"prompt {i}\n" for i in range(N)), encoding="utf-8")
    return Request(RunConfig(run=RunSettings(seed=7)), tmp_path / "out", prompts=file)


class Killed(Exception):
    """Acts as SIGKILL: nothing is done after it."""


def run(request: Request, kill_after: int | None = None) -> list[int]:
    """Run a request, and stop it hard after some images; return the prompt rows generated."""
    rows = []

    def listen(event):
        if isinstance(event, ImageFinished):
            rows.append(event.row["index"])
            if len(rows) == kill_after:
                raise Killed

    generator = FakeGenerator(batch=1)
    if kill_after is None:
        generate(request, generator.open, listen)
    else:
        with pytest.raises(Killed):
            generate(request, generator.open, listen)
    return rows


def seeds(out: Path) -> dict[int, int]:
    last = {entry.key: row for entry, row in RunFolder.read(out).rows()}
    return {key[0]: row["seed"] for key, row in last.items()}


def marker(out: Path) -> Path:
    return out / f".redo.shard-{Shard().label}.json"


def test_an_overwrite_that_was_stopped_goes_on(request_):
    run(request_)
    before = images(request_.out)
    again = replace(request_, overwrite=True)
    first = run(again, kill_after=2)
    assert preview(again).done == len(first)
    second = run(again)
    assert sorted(first + second) == list(range(N))
    assert not marker(request_.out).exists()
    assert images(request_.out) == before
    assert len(run(again)) == N  # and the next one begins anew


def test_an_overwrite_of_other_rows_begins_anew_and_a_plain_run_ends_it(request_):
    run(request_)
    run(replace(request_, overwrite=True), kill_after=2)
    some = replace(request_, overwrite=True, selection=Selection(((0, 1),)))
    assert run(some, kill_after=1) == [0]
    assert run(request_) == []
    assert not marker(request_.out).exists()


def test_a_reroll_takes_new_seeds_and_keeps_old_images_until_then(request_):
    run(request_)
    before, old = images(request_.out), seeds(request_.out)
    some = replace(request_, reroll=True, selection=Selection(((1, 3),)))
    assert run(some, kill_after=1) == [1]
    changed = [name for name, data in images(request_.out).items() if data != before[name]]
    assert changed == ["000001.png"]
    assert run(some) == [2, 3]
    new = seeds(request_.out)
    assert [row for row in old if old[row] != new[row]] == [1, 2, 3]
    assert check_folder(request_.out).whole
    run(some)
    third = seeds(request_.out)
    assert len({old[1], new[1], third[1]}) == 3
    (request_.out / "images/000001.png").unlink()
    assert run(request_) == [1]
    assert seeds(request_.out) == third  # what was rerolled stays so


def test_an_image_without_its_row_is_generated_again_though_its_size_fits(request_):
    run(request_)
    some = replace(request_, reroll=True, selection=Selection(((1, 1),)))
    log = log_path(request_.out, Shard())
    size = log.stat().st_size
    run(some, kill_after=1)
    log.write_bytes(log.read_bytes()[:size])
    image = request_.out / "images/000001.png"
    old = next(row for _, row in RunFolder.read(request_.out).rows() if row["index"] == 1)
    image.write_bytes(image.read_bytes()[:1].ljust(old["bytes"]))
    assert run(request_) == [1]
    assert check_folder(request_.out).whole


def test_overwrite_of_shards_each_for_itself(request_):
    run(request_)
    for index in (0, 1):
        part = replace(request_, overwrite=True, shard=Shard(index, 2))
        first = run(part, kill_after=1)
        assert sorted(first + run(part)) == list(range(index, N, 2))


def test_a_changed_prompt_is_accepted_for_named_rows_alone(request_):
    run(request_)
    assert isinstance(request_.prompts, Path)
    request_.prompts.write_text(request_.prompts.read_text().replace("prompt 3", "a plum"))
    for updates in ((), ((0, 2),)):
        with pytest.raises(FolderError, match="row 3 of the prompts has changed") as refused:
            run(replace(request_, updates=updates))
        assert "--update-prompts 3" in refused.value.hint
    updated = replace(request_, updates=((2, 3),))
    assert preview(updated).done == N - 1
    assert run(replace(updated, retry_failed=False)) == [3]
    assert [prompt.text for prompt in RunFolder.read(request_.out).prompts()][3] == "a plum"
    assert check_folder(request_.out).whole
    assert run(request_) == []


def test_an_image_of_an_earlier_text_is_missing(request_):
    run(request_)
    assert isinstance(request_.prompts, Path)
    request_.prompts.write_text(request_.prompts.read_text().replace("prompt 3", "a plum"))

    def fail(config):
        raise Killed

    with pytest.raises(Killed):
        generate(replace(request_, updates=((3, 3),)), fail, ignore)
    (missing,) = check_folder(request_.out).missing
    assert (missing.file, missing.reason) == (
        "images/000003.png",
        "generated from an earlier text or seed of its prompt",
    )


def test_a_changed_seed_of_the_same_text_is_generated_again(tmp_path):
    file = tmp_path / "prompts.jsonl"

    def write(*asked: int | None) -> None:
        rows = [{"prompt": "a plum"} | ({} if seed is None else {"seed": seed}) for seed in asked]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    write(1, 2, None, None)
    config = RunConfig(run=RunSettings(seed=7, num_images_per_prompt=2))
    request = Request(config, tmp_path / "out", prompts=file)
    run(request)
    old = {entry.key: row["seed"] for entry, row in RunFolder.read(request.out).rows()}
    write(1, 5, None, 6)
    updated = replace(request, updates=((1, 3),))
    assert preview(updated).done == 4
    assert sorted(run(updated)) == [1, 1, 3, 3]
    new = {entry.key: row["seed"] for entry, row in RunFolder.read(request.out).rows()}
    assert (new[1, 0], new[3, 0]) == (5, 6)
    assert {key[0] for key in old if old[key] != new[key]} == {1, 3}
    assert check_folder(request.out).whole
    write(1, 5, None, None)
    assert sorted(run(updated)) == [3, 3]
    last = {entry.key: row["seed"] for entry, row in RunFolder.read(request.out).rows()}
    assert (last[3, 0], last[3, 1]) == (old[3, 0], old[3, 1])
    assert run(request) == []


def test_one_sample_of_several(request_):
    config = replace(request_.config, run=replace(request_.config.run, num_images_per_prompt=4))
    some = replace(request_, config=config, sample=3, selection=Selection(((2, 2),)))
    assert run(some) == [2]
    assert list(images(request_.out)) == ["000002_03.png"]
    assert check_folder(request_.out).whole
    whole = replace(some, sample=None, selection=Selection(), out=request_.out.parent / "whole")
    run(whole)
    assert images(whole.out)["000002_03.png"] == images(request_.out)["000002_03.png"]
    with pytest.raises(ConfigError, match="no sample 4 of 4 images per prompt"):
        replace(some, sample=4)


def test_the_seed_of_an_image(request_, tmp_path):
    run(request_)
    seed = seeds(request_.out)[4]
    alone = Request(RunConfig(), tmp_path / "alone", inline=("prompt 4",), image_seed=seed)
    run(alone)
    assert seeds(alone.out) == {0: seed}
    assert run(alone) == []
    with pytest.raises(FolderError, match=rf"image seed: {seed} there, 5 now"):
        run(replace(alone, image_seed=5))
    with pytest.raises(ConfigError, match="6 images would get it"):
        run(replace(request_, image_seed=5))
