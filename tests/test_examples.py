"""The examples do what their first lines say."""

import base64
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from sjdvp_cli.app import run

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


@pytest.mark.process
def test_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("sys.argv", ["own_model.py", str(tmp_path / "own")])
    runpy.run_path(str(EXAMPLES / "own_model.py"), run_name="__main__")
    line = [
        "generate",
        "--profile",
        str(tmp_path / "own" / "profile.yaml"),
        "--prompt",
        "a red cat",
        "--out",
        str(tmp_path / "out"),
    ]
    assert run([*line, "--seed", "1", "--device", "cpu"]) == 0
    with Image.open(tmp_path / "out" / "images" / "000000.png") as image:
        assert image.size == (32, 32)


def test_glm_image_pixels(tmp_path: Path) -> None:
    """A pipeline gets the prompt and each token four times; tests have no diffusers."""
    example = runpy.run_path(str(EXAMPLES / "glm_image_pixels.py"))
    model = {"pixel_settings": {"model": {"width": 96, "height": 64}}}
    tokens = base64.b64encode(np.arange(6, dtype="uint16").tobytes()).decode()
    row = {"index": 3, "sample": 0, "dtype": "uint16", "tokens": tokens}
    (tmp_path / "run.json").write_text(json.dumps(model))
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"index": 3, "prompt": "a cat"}) + "\n")
    (tmp_path / "tokens.shard-000-of-001.jsonl").write_text(json.dumps(row) + "\n")

    def pipeline(prompt, prior_token_ids, height, width, **settings):
        assert (prompt, height, width, settings["num_inference_steps"]) == ("a cat", 64, 96, 2)
        lines = [0, 0, 1, 1, 2, 2] * 2 + [3, 3, 4, 4, 5, 5] * 2
        assert prior_token_ids.tolist() == [lines]
        return SimpleNamespace(images=[Image.new("RGB", (width, height))])

    pipeline.device = torch.device("cpu")
    example["convert"](tmp_path, tmp_path / "images", pipeline, num_inference_steps=2)
    with Image.open(tmp_path / "images" / "000003_00.png") as image:
        assert image.size == (96, 64)
