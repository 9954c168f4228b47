"""The wheel holds every file of the packages, and the profiles."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]


def files(folder: Path) -> set[str]:
    return {
        str(f.relative_to(folder))
        for f in folder.rglob("*")
        if f.is_file() and "__pycache__" not in f.parts
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "lib")
    return folder / "lib"


def test_every_file_is_shipped(built):
    for package in ("sjdvp", "sjdvp_cli"):
        missing = files(ROOT / package) - files(built / package)
        assert not missing, f"not in the wheel: {sorted(missing)}"


def test_profiles_are_shipped_inside_the_package(built):
    assert files(built / "sjdvp" / "profile_files") == files(ROOT / "profiles")


def test_installed_package_finds_its_profiles(built):
    code = (
        "from sjdvp.profiles import packaged_folder, resolve; "
        "print(packaged_folder(), resolve('emoji', environ={}).config.profile)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=built,
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": "."},
    )
    assert done.stdout.split() == [str(built / "sjdvp" / "profile_files"), "emoji"]
