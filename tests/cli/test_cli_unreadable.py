"""Folders that this user may not read: one line that names the folder, no traceback."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.synthetic import make_run, prompt_set

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
DENIED = "Permission denied"


@pytest.fixture
def sjdvp(tmp_path):
    """Run `sjdvp` as somebody for whom the modes of files count: root is made to leave its
    privileges.
    """
    humble = (
        ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    )
    if humble and not shutil.which("setpriv"):
        pytest.skip("root may read everything, and there is no setpriv")
    (tmp_path / "config" / "sjdvp" / "profiles").mkdir(parents=True)
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [*humble, sys.executable, "-m", "sjdvp_cli", *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=environ
        )

    return call


@pytest.fixture
def barred(tmp_path):
    """Take the rights away from a folder, and give them back in the end."""
    folders = []

    def bar(folder: Path, mode: int) -> Path:
        folder.chmod(mode)
        folders.append(folder)
        return folder

    yield bar
    for folder in folders:
        folder.chmod(0o755)


def refused(done, folder):
    first = done.stderr.partition("\n")[0]
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert f"cannot read {folder}" in first
    assert DENIED in first


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o444])
def test_images_that_cannot_be_read(sjdvp, barred, tmp_path, mode):
    out = make_run(tmp_path / "out", "sjd", 2)
    images = barred(out / "images", mode)
    refused(sjdvp("check", out), images)
    rows = [[prompt.text, *map(str, prompt.extra.values())] for prompt in prompt_set(2).prompts]
    prompts = tmp_path / "p.tsv"
    prompts.write_text(
        "\n".join(map("\t".join, [["prompt", "Category", "Challenge"], *rows])), encoding="utf-8"
    )
    refused(sjdvp("generate", "--prompts", prompts, "-o", out, "--decoder", "sjd"), images)
    assert (
        sjdvp("report", out).returncode == 0
    )  # the page says in its place which image is not there
    assert sjdvp("export", out, "--layout", "flat").returncode == 1  # the same of what was left out


@pytest.mark.parametrize("command", ["check", "report", "export --layout flat"])
@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_a_run_folder_that_cannot_be_read(sjdvp, barred, tmp_path, command, mode):
    out = barred(make_run(tmp_path / "out", "sjd", 2), mode)
    name, *flags = command.split()
    done = sjdvp(name, out, *flags)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert re.search(f"{DENIED}|is not readable", done.stderr.partition("\n")[0])


@pytest.mark.parametrize("mode", [0o000, 0o400])
@pytest.mark.parametrize(
    "command",
    ["profiles", "profiles show", "profiles check", "generate --prompt x --dry-run -o nowhere"],
)
def test_settings_that_cannot_be_read(sjdvp, barred, tmp_path, command, mode):
    folder = barred(tmp_path / "config" / "sjdvp", mode)
    refused(sjdvp(*command.split()), folder)


def test_profiles_that_cannot_be_read(sjdvp, barred, tmp_path):
    folder = barred(tmp_path / "config" / "sjdvp" / "profiles", 0o000)
    refused(sjdvp("profiles"), folder)
    barred(folder, 0o755)
    file = folder / "mine.yaml"
    file.touch()
    barred(file, 0o000)
    done = sjdvp("profiles")
    assert (done.returncode, done.stderr) == (0, f"sjdvp: warning: left out: {file}: {DENIED}\n")
