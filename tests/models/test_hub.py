"""A hub id on the command line without a network: cached weights are used, others are named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.tiny import save_tiny_model

pytestmark = pytest.mark.process

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """A hub cache that holds the repository owner/tiny."""
    repository = tmp_path / "home" / "hub" / "models--owner--tiny"
    save_tiny_model(repository / "snapshots" / SHA)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(SHA)
    return tmp_path / "home"


def generate(home: Path, *arguments: str, offline: str = "1") -> subprocess.CompletedProcess[str]:
    nobody = "http://127.0.0.1:9"  # listens there
    hub = {"HF_ENDPOINT": nobody, "HF_HOME": str(home), "HF_HUB_OFFLINE": offline}
    environment = {**os.environ, **hub, "XDG_CONFIG_HOME": str(home)}
    line = [
        sys.executable,
        "-m",
        "sjdvp_cli",
        "generate",
        "--prompt",
        "a red dog",
        "--device",
        "cpu",
        *arguments,
    ]
    return subprocess.run(
        line,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def test_the_parent_resolves_and_a_worker_gets_a_path(cached: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = [
        "--set",
        "model.backbone=generic",
        "--model",
        "owner/tiny",
        "--workers",
        "1",
        "-o",
        str(out),
    ]
    done = generate(cached, *settings)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "run.json").read_text())["revision"] == SHA
    row = json.loads((out / "log.shard-000-of-001.jsonl").read_text())
    assert row["revision"] == SHA


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Exit 2 with the file, the places searched and the command, offline or unreachable."""
    for offline, reason in (("1", "HF_HUB_OFFLINE is set"), ("0", "does not answer")):
        done = generate(
            tmp_path,
            "--profile",
            "lumina-mgpt-7b-768",
            "-o",
            str(tmp_path / f"out{offline}"),
            offline=offline,
        )
        assert done.returncode == 2
        assert reason in done.stderr
        assert "Alpha-VLLM/Lumina-mGPT-7B-768 is not on this machine" in done.stderr
        assert str(tmp_path / "hub") in done.stderr
        assert "hf download Alpha-VLLM/Lumina-mGPT-7B-768" in done.stderr
