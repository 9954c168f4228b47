"""What a model cannot do is refused before a folder is made."""

import pytest

from tests.engine.tiny import save_tiny_model


@pytest.mark.parametrize("command", ["generate", "compare"])
@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (["--size", "100"], "no images of 100x100 pixels", "--size"),
        (["--device", "cuda:99"], "cuda", ""),
        (["--set", "model.backbone=other"], "unknown backbone", ""),
        (["--model", "/nowhere/weights"], "no such file or folder", ""),
        (["--window", "9999"], "decoder.window must be auto, or between", ""),
    ],
)
def test_no_folder_is_left_behind(sjdvp, tmp_path, command, flags, message, hint):
    model = save_tiny_model(tmp_path / "tiny")
    words = ["--decoders", "ar,sjd"] if command == "compare" else []
    model_flags = [] if "--model" in flags else ["--model", model]
    out = tmp_path / "out"
    result = sjdvp(command, "--prompt", "a", "-o", out, *words, *model_flags, *flags)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert hint in result.err
    assert len(result.err.strip().splitlines()) <= 2
    assert not out.exists()


def test_weights_on_the_hub_are_left_to_the_loading(sjdvp, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out = tmp_path / "out"
    result = sjdvp("generate", "--prompt", "a", "-o", out, "--model", "owner/nothing")
    assert result.code == 2
    assert "hf download owner/nothing" in result.err
