"""Layers shared out over several devices: how many on each, and the same images."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sjdvp.errors import DeviceError
from sjdvp.models.device_map import share_out
from tests.engine.tiny import save_tiny_model

pytestmark = pytest.mark.process

GIB = 2**30
A, B, C = (torch.device("cuda", index) for index in range(3))


@pytest.mark.parametrize(
    ("free", "counts"),
    [
        ({A: 79, B: 79}, [24, 24]),
        ({A: 22, B: 24, C: 24}, [15, 17, 16]),
        (
            {A: 79, B: 22},
            [38, 10],
        ),  # the larger card holds more, and both keep room for keys and values
        ({A: -1, B: 79}, [0, 48]),  # one card is full
        ({A: 79}, [48]),
    ],
)
def test_each_device_gets_layers_by_its_share_of_free_memory(
    free: dict[torch.device, int], counts: list[int]
) -> None:
    devices = share_out(48, 62 * GIB, {device: gib * GIB for device, gib in free.items()})
    assert [devices.count(device) for device in free] == counts
    assert devices == sorted(devices, key=list(free).index)


def test_layers_that_fit_nowhere() -> None:
    with pytest.raises(DeviceError, match=r"layers take 62.0 GiB; 2 devices together: 44.0 GiB"):
        share_out(48, 62 * GIB, {A: 22 * GIB, B: 22 * GIB})


def test_two_cards_give_the_images_of_one(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    program = [sys.executable, "-m", "tests.models.two_cards", str(save_tiny_model(tmp_path))]
    done = subprocess.run(
        program, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    one, two = (line.split() for line in done.stdout.splitlines())
    assert (one[:2], two[:2]) == (
        ["card:0", "card:0"],
        ["card:0", "card:1"],
    )  # where the keys and values of the layers are
    assert len(set(one[2:])) == 3
    assert one[2:] == two[2:]
