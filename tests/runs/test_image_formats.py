"""jpg and webp: names, contents, metadata, resuming, and the commands that read them."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from sjdvp.config import RunConfig, RunSettings
from sjdvp.events import Note, ignore
from sjdvp.generate import Request, generate
from sjdvp.runs.check import check_folder
from sjdvp.runs.export import export_folder
from sjdvp.runs.writer import encode_image, read_metadata
from tests.fake_generator import FakeGenerator

PIXELS = np.linspace(0, 255, 64 * 64 * 3).reshape(64, 64, 3).astype(np.uint8)


def run(folder, image_format, **more):
    settings = RunSettings(seed=1, image_format=image_format, **more)
    request = Request(RunConfig(run=settings), folder, inline=("a caf\u00e9 \U0001f600", "a dog"))
    return generate(request, FakeGenerator().open, ignore)


@pytest.mark.parametrize(("image_format", "kind"), [("jpg", "JPEG"), ("webp", "WEBP")])
def test_images_carry_their_settings_and_every_command_reads_them(tmp_path, image_format, kind):
    out = tmp_path / "out"
    assert run(out, image_format).ok == 2
    assert run(out, image_format).ok == 0  # nothing left to do
    names = [f"00000{i}.{image_format}" for i in (0, 1)]
    assert sorted(path.name for path in (out / "images").iterdir()) == names
    with Image.open(out / "images" / names[0]) as image:
        assert image.format == kind
    found = read_metadata(out / "images" / names[0])
    assert found["sjdvp"]["prompt"] == "a caf\u00e9 \U0001f600"
    assert found["parameters"].startswith("a caf\u00e9 \U0001f600\nSteps: ")
    assert check_folder(out).whole
    export_folder(out, tmp_path / "t", "captions")
    assert (tmp_path / "t" / names[1]).samefile(out / "images" / names[1])
    (out / "images" / names[1]).unlink()
    assert [finding.file for finding in check_folder(out).missing] == [f"images/{names[1]}"]


def test_a_finished_image_keeps_its_format(tmp_path):
    run(tmp_path / "out", "png")
    assert run(tmp_path / "out", "jpg").ok == 0
    assert {path.suffix for path in (tmp_path / "out/images").iterdir()} == {".png"}


def test_another_format_replaces_the_image(tmp_path):
    run(tmp_path / "out", "png")
    settings = RunSettings(seed=1, image_format="webp")
    inline = ("a caf\u00e9 \U0001f600", "a dog")
    request = Request(RunConfig(run=settings), tmp_path / "out", inline=inline, overwrite=True)
    assert generate(request, FakeGenerator().open, ignore).ok == 2
    assert {path.suffix for path in (tmp_path / "out/images").iterdir()} == {".webp"}
    assert check_folder(tmp_path / "out").whole


def test_without_metadata_equal_pixels_are_equal_bytes(tmp_path):
    run(tmp_path / "out", "webp", metadata=False)
    assert read_metadata(tmp_path / "out/images/000000.webp") == {}
    for image_format in ("jpg", "webp"):
        first, second = (encode_image(PIXELS, {}, image_format, 90) for _ in range(2))
        assert first == second
        assert len(first) < len(encode_image(PIXELS, {}, image_format, 100))


def test_texts_too_long_for_a_jpeg_are_left_out_and_told(tmp_path):
    notes = []
    for image_format in ("jpg", "webp"):
        config = RunConfig(run=RunSettings(seed=1, image_format=image_format))
        request = Request(config, tmp_path / image_format, inline=("x" * 70_000, "a dog"))
        generate(request, FakeGenerator().open, notes.append)
    (told,) = (note.message for note in notes if isinstance(note, Note) and note.level != "info")
    assert told == (
        "images/000000.jpg is without its settings: JPEG holds 64 kB; they are in its log row"
    )
    assert read_metadata(tmp_path / "jpg/images/000000.jpg") == {}
    assert read_metadata(tmp_path / "jpg/images/000001.jpg")["sjdvp"]["prompt"] == "a dog"
    assert read_metadata(tmp_path / "webp/images/000000.webp") != {}


def test_the_format_does_not_shape_pixels():
    config = RunConfig()
    other = dataclasses.replace(config, run=RunSettings(image_format="jpg", image_quality=50))
    assert config.fingerprint() == other.fingerprint()
