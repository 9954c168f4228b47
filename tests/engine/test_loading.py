"""What `run.device_map` needs, and what is said where it is not there."""

import pytest
import torch

from sjdvp.config import RunConfig, RunSettings
from sjdvp.engine import devices, loading
from sjdvp.errors import ConfigError, DeviceError

SHARED = RunConfig(run=RunSettings(device_map="auto"))


def test_without_accelerate(monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="accelerate is not installed") as caught:
        loading.load_model(SHARED)
    assert (caught.value.exit_code, caught.value.hint) == (
        2,
        "in the checkout of sjdvp: pip install '.[big]'",
    )


def test_without_gpus(monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: name)
    monkeypatch.setattr(loading, "count_gpus", lambda: 0)
    with pytest.raises(DeviceError, match="sees no GPU"):
        loading.load_model(SHARED)


def test_the_gpu_of_a_run_is_the_current_one(monkeypatch):
    """Streams and graphs name no device: on the second GPU they must not be made on the first."""
    current = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    for name in ("cuda:1", "cuda", "cpu"):
        devices.use_device(torch.device(name))
    assert current == [torch.device("cuda:1")]
    monkeypatch.setattr(loading, "pick_device", lambda name: torch.device("meta"))
    monkeypatch.setattr(loading, "use_device", current.append)
    loading.load_model(RunConfig())
    assert current[1:] == [torch.device("meta")]
