"""Image tokens beside the images: --save-tokens, missing pixels, images from tokens."""

import base64
import contextlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sjdvp.config import ModelConfig, RunConfig, RunSettings
from sjdvp.errors import FolderError, ImageError
from sjdvp.events import ImageFinished, ignore
from sjdvp.generate import Request, generate
from sjdvp.jobs import Job
from sjdvp.pixels import complete_run, write_images
from sjdvp.runs.check import check_folder
from sjdvp.runs.folder import RunFolder
from sjdvp.runs.sharding import Selection, Shard
from sjdvp.runs.tokens import saved_tokens, tokens_files
from tests.fake_generator import FakeGenerator, noise, tokens_of

N = 6


@pytest.fixture
def request_(tmp_path) -> Request:
    config = RunConfig(run=RunSettings(seed=7, save_tokens=True, num_images_per_prompt=2))
    return Request(config, tmp_path / "out", prompts=prompts(tmp_path, "prompt {}"))


def prompts(folder: Path, text: str) -> Path:
    file = folder / "prompts.txt"
    file.write_text("".join(text.format(i) + "\n" for i in range(N)), encoding="utf-8")
    return file


def run(request: Request, listen=ignore) -> FakeGenerator:
    generator = FakeGenerator()
    generate(request, generator.open, listen)
    return generator


def seeds(out: Path) -> dict[tuple[int, int], int]:
    return {entry.key: row["seed"] for entry, row in RunFolder.read(out).rows()}


def seeded_pixels(out: Path):
    """Return a decoder that knows which image of a run some tokens are."""
    jobs = [Job(*key, seed, "") for key, seed in seeds(out).items()]
    known = {tokens_of(job): noise(job) for job in jobs}
    return known.__getitem__


def opener(out: Path):
    opened = []

    def open_decoder(config):
        opened.append(config)
        return contextlib.nullcontext(seeded_pixels(out))

    return opened, open_decoder


def images(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_tokens_of_each_image_are_kept_once(request_):
    run(request_)
    run(request_)
    run(replace(request_, overwrite=True))
    saved = list(saved_tokens(request_.out))
    assert Counter(tokens.key for tokens in saved) == Counter(list(seeds(request_.out)))
    for tokens in saved:
        job = Job(*tokens.key, seeds(request_.out)[tokens.key], "")
        assert tokens.decode() == tokens_of(job)
    assert check_folder(request_.out).whole


def test_a_row_can_be_read_with_numpy(request_):
    run(request_)
    row = json.loads(tokens_files(request_.out)[0].read_text().splitlines()[0])
    tokens = np.frombuffer(base64.b64decode(row["tokens"]), row["dtype"])
    assert tuple(tokens.tolist()) in [tokens.decode() for tokens in saved_tokens(request_.out)]


def test_without_the_flag_there_are_none_and_with_it_they_are_added(request_):
    settings = replace(request_.config.run, save_tokens=False)
    run(replace(request_, config=replace(request_.config, run=settings)))
    before = images(request_.out / "images")
    assert tokens_files(request_.out) == []
    assert check_folder(request_.out).whole
    assert len(run(request_).generated) == 2 * N
    assert images(request_.out / "images") == before
    assert check_folder(request_.out).whole
    assert run(request_).generated == []


def test_tokens_of_shards_and_rerolls(request_):
    for index in (0, 1):
        run(replace(request_, shard=Shard(index, 2)))
    run(replace(request_, reroll=True, selection=Selection(((1, 2),))))
    assert len(tokens_files(request_.out)) == 3
    assert len(list(saved_tokens(request_.out))) == 2 * N + 4
    assert check_folder(request_.out).whole


def test_decode_names_images_as_the_run_where_rows_differ_in_their_number(request_, tmp_path):
    records = [{"prompt": "a"}, {"prompt": "b", "n": 3}, {"prompt": "c", "n": 1}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    run(replace(request_, prompts=file))
    out = request_.out
    write_images(out, tmp_path / "all", seeded_pixels(out), lambda decoded: None)
    assert images(tmp_path / "all").keys() == images(out / "images").keys()


def test_check_finds_lost_and_damaged_tokens(request_):
    run(request_)
    (file,) = tokens_files(request_.out)
    lines = file.read_text().splitlines(keepends=True)
    row = json.loads(lines[1])
    data = bytearray(base64.b64decode(row["tokens"]))
    data[0] ^= 1
    damaged = json.dumps({**row, "tokens": base64.b64encode(bytes(data)).decode()}) + "\n"
    file.write_text("".join([damaged, *lines[2:]]))
    found = check_folder(request_.out)
    assert found.ok == 2 * N - 2
    assert [f.reason for f in found.missing] == ["its image tokens are not saved"]
    (corrupt,) = found.corrupt
    assert corrupt.reason == f"{file.name}: line 1: the image tokens are damaged"
    file.write_text("".join(lines[2:]))
    assert len(run(request_).generated) == 2
    assert check_folder(request_.out).whole


def test_a_torn_last_line_is_cut_off(request_):
    run(request_)
    (file,) = tokens_files(request_.out)
    file.write_bytes(file.read_bytes()[:-20])
    assert len(run(request_).generated) == 1
    assert check_folder(request_.out).whole


@pytest.mark.parametrize("by", ["generate", "decode"])
def test_pixels_that_failed_are_made_later_of_the_tokens(request_, tmp_path, by):
    unsaved = RunConfig(run=RunSettings(seed=7))
    request = Request(unsaved, request_.out, prompts=prompts(tmp_path, "pixels {}"))
    rows = {}

    def listen(event):
        if isinstance(event, ImageFinished):
            rows[event.row["index"]] = event.row

    run(request, listen)
    assert [row["status"] for row in rows.values()] == ["failed"] * N
    assert {saved.key[0] for saved in saved_tokens(request.out)} == set(rows)
    first = dict(rows)
    if by == "generate":
        assert all(job.tokens for job in run(request, listen).generated)
    else:
        opened, open_decoder = opener(request.out)
        assert complete_run(request.out, open_decoder, lambda decoded: None).written == N
        assert len(opened) == 1
        rows = {row["index"]: row for _, row in RunFolder.read(request.out).rows()}
    assert check_folder(request.out).whole
    for index, row in rows.items():
        kept = ("nfe", "drafted", "accepted", "latency_s", "token_sha256", "seed")
        assert [row[key] for key in kept] == [first[index][key] for key in kept]
        assert (row["status"], row["error"], row["attempt"]) == ("ok", None, 2)
        with Image.open(request.out / row["file"]) as image:
            assert (np.asarray(image) == noise(Job(index, 0, row["seed"], ""))).all()
    assert run(request).generated == []


def test_a_reroll_of_an_image_without_pixels_has_other_tokens(request_, tmp_path):
    request = replace(request_, prompts=prompts(tmp_path, "pixels {}"))
    run(request)
    again = run(replace(request, reroll=True)).generated
    assert [job.tokens for job in again] == [None] * 2 * N


def test_images_of_all_samples_that_any_command_asked_for(request_):
    one = replace(request_.config.run, num_images_per_prompt=1)
    run(replace(request_, config=replace(request_.config, run=one)))
    run(request_)
    before = images(request_.out / "images")
    for name in ("000001.png", "000002_01.png"):
        (request_.out / "images" / name).unlink()
    opened, open_decoder = opener(request_.out)
    assert complete_run(request_.out, open_decoder, lambda decoded: None).written == 2
    assert check_folder(request_.out).whole
    assert len(images(request_.out / "images")) == len(before)
    assert complete_run(request_.out, open_decoder, lambda decoded: None).written == 0
    assert len(opened) == 1  # nothing is loaded when there is nothing to do


def test_images_elsewhere_are_those_of_the_last_attempt(request_, tmp_path):
    run(request_)
    run(replace(request_, reroll=True, selection=Selection(((1, 2),))))
    out = tmp_path / "elsewhere"
    decoder = seeded_pixels(request_.out)
    assert write_images(request_.out, out, decoder, lambda decoded: None).written == 2 * N
    for name in images(request_.out / "images"):
        with Image.open(request_.out / "images" / name) as own, Image.open(out / name) as other:
            assert own.tobytes() == other.tobytes()
    alone = tmp_path / "tokens.jsonl"
    tokens_files(request_.out)[0].rename(alone)
    other = tmp_path / "of the file"
    assert write_images(alone, other, decoder, lambda decoded: None).written == 2 * N
    assert images(other) == images(out)


def test_rows_of_another_size_get_a_decoder_of_that_size(tmp_path):
    file = tmp_path / "p.jsonl"
    rows = [{"prompt": "pixels a"}, {"prompt": "pixels b", "size": "64x32"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = RunConfig(model=ModelConfig(backbone="emu3"), run=RunSettings(seed=7))
    request = Request(config, tmp_path / "out", prompts=file)
    run(request)
    opened, open_decoder = opener(request.out)
    assert complete_run(request.out, open_decoder, lambda decoded: None).written == 2
    sizes = [(config.model.width, config.model.height) for config in opened]
    assert sizes == [(None, None), (64, 32)]


def test_an_image_that_fails_is_told_and_the_others_are_made(request_, tmp_path):
    run(request_)
    bad = next(iter(saved_tokens(request_.out))).decode()
    decoder = seeded_pixels(request_.out)

    def decode(tokens):
        if tokens == bad:
            raise ImageError("out of memory")
        return decoder(tokens)

    decoded = write_images(request_.out, tmp_path / "elsewhere", decode, lambda decoded: None)
    assert (decoded.written, len(decoded.failures)) == (2 * N - 1, 1)


def test_a_folder_without_tokens(request_):
    settings = replace(request_.config.run, save_tokens=False)
    run(replace(request_, config=replace(request_.config, run=settings)))
    with pytest.raises(FolderError, match="has no image tokens"):
        complete_run(request_.out, opener(request_.out)[1], lambda decoded: None)
