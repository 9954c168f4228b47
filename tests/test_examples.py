"""The examples do what their first lines say."""

import runpy
from pathlib import Path

import pytest
from PIL import Image

from sjdvp_cli.app import run

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


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
