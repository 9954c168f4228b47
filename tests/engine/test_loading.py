"""What `run.device_map` needs, and what is said where it is not there."""

import pytest

from sjdvp.config import RunConfig, RunSettings
from sjdvp.engine import loading
from sjdvp.errors import ConfigError, DeviceError

SHARED = RunConfig(run=RunSettings(device_map="auto"))


def test_without_accelerate(monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="accelerate is not installed") as caught:
        loading.load_backbone(SHARED)
    assert (caught.value.exit_code, caught.value.hint) == (2, 'pip install "sjdvp[big]"')


def test_without_gpus(monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: name)
    monkeypatch.setattr(loading.torch.cuda, "device_count", lambda: 0)
    with pytest.raises(DeviceError, match="sees no GPU"):
        loading.load_backbone(SHARED)
