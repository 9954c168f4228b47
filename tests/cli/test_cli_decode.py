"""`sjdvp decode` with the embedded model: pixels of saved tokens, without the transformer."""

import pytest
from PIL import Image

from sjdvp.engine.loading import open_pixel_decoder
from sjdvp.runs.tokens import tokens_files


@pytest.fixture
def run(sjdvp, tmp_path):
    prompts = ("--prompt", "a red heart", "--prompt", "a dog")
    flags = ("--save-tokens", "--set", "decoder.window=8", "--seed", "1")
    assert sjdvp("generate", *prompts, *flags, "-o", tmp_path / "run").code == 0
    return tmp_path / "run"


@pytest.mark.process
def test_a_run_gets_its_image_back_byte_for_byte(sjdvp, run):
    image = run / "images/000001.png"
    before = image.read_bytes()
    image.unlink()
    made = sjdvp("decode", run)
    assert (made.code, made.out) == (0, "")
    assert made.err == f"sjdvp: 1 image made from saved tokens in {run}\n"
    assert image.read_bytes() == before
    assert sjdvp("check", run).code == 0


@pytest.mark.process
def test_a_tokens_file_alone_gives_the_images(sjdvp, run, tmp_path):
    file = tmp_path / "tokens.jsonl"
    file.write_bytes(tokens_files(run)[0].read_bytes())
    assert sjdvp("decode", file, "--out", tmp_path / "out").code == 0
    for name in ("000000.png", "000001.png"):
        with Image.open(run / "images" / name) as own, Image.open(tmp_path / "out" / name) as made:
            assert own.tobytes() == made.tobytes()


@pytest.mark.process
def test_what_cannot_be_decoded_is_refused(sjdvp, run, tmp_path):
    (file,) = tokens_files(run)
    for words, message in (
        (("decode", file), "is not a run folder"),
        (("decode", tmp_path, "-o", tmp_path / "x"), "has no image tokens"),
        (("decode", tmp_path / "none.jsonl", "-o", tmp_path / "x"), "cannot read none.jsonl"),
        (("decode", file, "-o", tmp_path / "x", "--model", tmp_path / "none"), "none"),
    ):
        result = sjdvp(*words)
        assert result.code == 2
        assert message in result.err
    row = file.read_text().replace('"uint16"', '"uint32"', 1)
    file.write_text(row)
    result = sjdvp("decode", file, "-o", tmp_path / "x")
    assert result.code == 2
    assert f"{file.name}: line 1: the image tokens are damaged" in result.err


@pytest.mark.process
def test_only_the_vq_decoder_is_loaded(run):
    from sjdvp.pixels import config_of
    from sjdvp.runs.folder import RunFolder

    with open_pixel_decoder(config_of(RunFolder.read(run).info)) as decoder:
        assert decoder.model.transformer.device.type == "meta"
        assert decoder.model.codebook().device.type == "cpu"
