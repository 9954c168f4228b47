"""A disk that really is full: a tiny file system in memory, a little larger each time."""

import os
import subprocess

import pytest

from sjdvp.config import RunConfig, RunSettings
from sjdvp.errors import FolderError, StorageError
from sjdvp.events import ignore
from sjdvp.generate import Request, generate
from sjdvp.runs.check import check_folder
from tests.fake_generator import FakeGenerator

PAGE_KIB = 4


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or _mount(folder, "size=4k").returncode != 0:
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _mount(folder, options):
    return subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )


def test_a_run_stops_wherever_the_disk_is_full_and_goes_on_with_more_room(disk, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"prompt {i}\n" for i in range(8)), encoding="utf-8")
    request = Request(RunConfig(run=RunSettings(seed=1)), disk / "out", prompts=prompts)
    generate(
        Request(request.config, tmp_path / "whole", prompts=prompts), FakeGenerator().open, ignore
    )
    stops = []
    for pages in range(1, 40):
        _mount(disk, f"remount,size={pages * PAGE_KIB}k")
        try:
            assert generate(request, FakeGenerator(batch=1).open, ignore).exit_code == 0
            break
        except (StorageError, FolderError) as error:
            stops.append(str(error))
            assert not list((disk / "out" / "images").glob(".*"))
    assert len(stops) >= 10
    assert check_folder(disk / "out").whole
    whole, resumed = (
        {path.name: path.read_bytes() for path in (out / "images").iterdir()}
        for out in (tmp_path / "whole", disk / "out")
    )
    assert whole == resumed
