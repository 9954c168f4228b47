from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from sjdvp import weights
from sjdvp.config import ModelConfig
from sjdvp.errors import WeightsError

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one snapshot of one repository; anything else is out of reach."""
    snapshot = tmp_path / "models--owner--name" / "snapshots" / SHA
    (snapshot / "part").mkdir(parents=True)
    for file in ("config.json", "model.safetensors", "part/vq.ckpt"):
        (snapshot / file).write_bytes(b"")

    def fetch(repo: str, file: str | None = None, *, revision: str | None = None, allow_patterns: object = None) -> str:
        path = snapshot / file if file else snapshot
        if repo != "owner/name" or revision not in (None, "main", SHA) or not path.exists():
            raise LocalEntryNotFoundError("offline")
        return str(path)

    monkeypatch.setattr(weights, "snapshot_download", fetch)
    monkeypatch.setattr(weights, "hf_hub_download", fetch)
    return snapshot


def test_a_local_path_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert weights.locate(str(tmp_path / "mine")) == weights.Located(tmp_path / "mine", "mine", None)


def test_a_hub_id_gives_path_name_and_revision(hub: Path) -> None:
    assert weights.locate("owner/name") == weights.Located(hub, "owner/name", SHA)
    assert weights.locate("owner/name@main").revision == SHA
    assert weights.locate("owner/name/part/vq.ckpt") == weights.Located(hub / "part" / "vq.ckpt", "owner/name/part/vq.ckpt", SHA)
    assert weights.locate(str(hub)) == weights.Located(hub, "owner/name", SHA)  # what a worker is given


def test_pinned_settings_hold_paths_and_the_revision(hub: Path) -> None:
    pinned = weights.pin(ModelConfig(path="owner/name", pixels="owner/name/part/vq.ckpt"))
    assert (pinned.path, pinned.pixels, pinned.revision) == (str(hub), str(hub / "part" / "vq.ckpt"), SHA)
    assert weights.pin(ModelConfig()) == ModelConfig()
    mine = ModelConfig(path=str(hub.parent), tokenizer="owner/other/tokenizer.json")  # may not be needed
    assert weights.pin(mine).tokenizer == "owner/other/tokenizer.json"
    with pytest.raises(WeightsError):
        weights.pin(ModelConfig(path="owner/other"))


def test_what_is_missing_is_named_with_the_command_that_fetches_it(hub: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        weights.locate("owner/other@v2/big.pt", setting="model.pixels")
    assert caught.value.exit_code == 2
    assert "big.pt of owner/other is not here" in str(caught.value)
    assert str(weights.HF_HUB_CACHE) in str(caught.value)
    assert caught.value.hint.endswith("hf download owner/other big.pt --revision v2")


@pytest.mark.parametrize("spec", ["./nothing", "/no/such/folder", "just-a-word", None])
def test_neither_a_path_nor_a_hub_id(spec: str | None) -> None:
    with pytest.raises(WeightsError):
        weights.locate(spec)


def test_a_file_is_looked_for_beside_the_weights_first(hub: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    located = weights.locate(str(mine))
    assert weights.find_file(located, ["vq.ckpt", "part/vq.ckpt"], "owner/name", "model.pixels") == hub / "part" / "vq.ckpt"
    (mine / "vq.ckpt").write_bytes(b"")
    assert weights.find_file(located, ["vq.ckpt"], "owner/name", "model.pixels") == mine / "vq.ckpt"
    with pytest.raises(WeightsError, match=r"looked for .*mine/a\.json"):
        weights.find_file(located, ["a.json"], None, "model.tokenizer")
