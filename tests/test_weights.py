import json
import socket
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
    monkeypatch.setattr(weights, "_why_not_asked", lambda: "")
    for file in ("config.json", "model.safetensors", "part/vq.ckpt"):
        (snapshot / file).write_bytes(b"")

    def fetch(
        repo: str,
        file: str | None = None,
        *,
        revision: str | None = None,
        local_files_only: bool,
        allow_patterns: object = None,
    ) -> str:
        path = snapshot / file if file else snapshot
        if repo != "owner/name" or revision not in (None, "main", SHA) or not path.exists():
            raise LocalEntryNotFoundError("offline")
        return str(path)

    monkeypatch.setattr(weights, "snapshot_download", fetch)
    monkeypatch.setattr(weights, "hf_hub_download", fetch)
    return snapshot


def test_a_local_path_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert weights.locate(str(tmp_path / "mine")) == weights.Located(
        tmp_path / "mine", "mine", None
    )


def test_a_hub_id_gives_path_name_and_revision(hub: Path) -> None:
    assert weights.locate("owner/name") == weights.Located(hub, "owner/name", SHA)
    assert weights.locate("owner/name@main").revision == SHA
    assert weights.locate("owner/name/part/vq.ckpt") == weights.Located(
        hub / "part" / "vq.ckpt", "owner/name/part/vq.ckpt", SHA
    )
    assert weights.locate(str(hub)) == weights.Located(
        hub, "owner/name", SHA
    )  # what a worker is given


def test_a_folder_of_a_repository(hub: Path) -> None:
    found = weights.locate("owner/name/part", setting="model.tokenizer")
    assert found == weights.Located(hub / "part", "owner/name/part", SHA)
    assert weights.locate("owner/name/part").path == hub / "part"
    with pytest.raises(WeightsError) as caught:
        weights.locate("owner/other/part")
    assert caught.value.hint.endswith("hf download owner/other --include 'part/*'")


def test_pinned_settings_hold_paths_and_the_revision(hub: Path) -> None:
    pinned = weights.pin(ModelConfig(path="owner/name", vq_decoder="owner/name/part/vq.ckpt"))
    assert (pinned.path, pinned.vq_decoder, pinned.revision) == (
        str(hub),
        str(hub / "part" / "vq.ckpt"),
        SHA,
    )
    assert weights.pin(ModelConfig()) == ModelConfig()
    mine = ModelConfig(
        path=str(hub.parent), tokenizer="owner/other/tokenizer.json"
    )  # may not be needed
    assert weights.pin(mine).tokenizer == "owner/other/tokenizer.json"
    for lacking in (
        ModelConfig(path="owner/other"),
        ModelConfig(path="owner/name", text_encoder="owner/other"),
    ):
        with pytest.raises(WeightsError):
            weights.pin(lacking)


def test_what_is_missing_is_named_with_the_command_that_fetches_it(hub: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        weights.locate("owner/other@v2/big.pt", setting="model.vq_decoder")
    assert caught.value.exit_code == 2
    assert "big.pt of owner/other is not on this machine" in str(caught.value)
    assert str(weights.HF_HUB_CACHE) in str(caught.value)
    assert caught.value.hint.endswith("hf download owner/other big.pt --revision v2")


def test_a_snapshot_that_lacks_files_names_the_first(hub: Path) -> None:
    """Other programs, or a tokenizer alone, may have left a part of a repository in the cache."""
    (hub / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}})
    )
    with pytest.raises(
        WeightsError, match=r"one\.safetensors of owner/name is not on this machine"
    ):
        weights.locate("owner/name")
    for file in ("model.safetensors.index.json", "model.safetensors", "part/vq.ckpt"):
        (hub / file).unlink()
    with pytest.raises(WeightsError, match="the weights of owner/name is not on this machine"):
        weights.locate("owner/name")
    assert weights.locate("owner/name", setting="model.tokenizer").path == hub


def test_weights_are_called_the_same_wherever_they_lie(hub: Path) -> None:
    assert weights.called(str(hub)) == weights.called("owner/name") == "owner/name"
    assert weights.called("/my/model") == "/my/model"


def test_a_hub_that_does_not_answer_costs_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(weights, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(weights, "_TIMEOUT_S", 0.1)
        weights._silence.cache_clear()
        assert "does not answer: timed out" in weights._silence()
    weights._silence.cache_clear()


@pytest.mark.parametrize("spec", ["./nothing", "/no/such/folder", "just-a-word", None])
def test_neither_a_path_nor_a_hub_id(spec: str | None) -> None:
    with pytest.raises(WeightsError):
        weights.locate(spec)


def test_a_file_is_searched_beside_the_weights_first(hub: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    located = weights.locate(str(mine))
    assert (
        weights.find_file(located, ["vq.ckpt", "part/vq.ckpt"], "owner/name", "model.vq_decoder")
        == hub / "part" / "vq.ckpt"
    )
    (mine / "vq.ckpt").write_bytes(b"")
    assert (
        weights.find_file(located, ["vq.ckpt"], "owner/name", "model.vq_decoder")
        == mine / "vq.ckpt"
    )
    with pytest.raises(WeightsError, match=r"looked for .*mine/a\.json"):
        weights.find_file(located, ["a.json"], None, "model.tokenizer")


def test_a_file_of_the_user_s_own_comes_first(hub: Path, tmp_path: Path) -> None:
    """A hub id in a profile, in the cache or not, is for weights that come without."""
    (tmp_path / "mine").mkdir()
    for folder in (hub, tmp_path / "mine"):
        (folder / "vq.ckpt").write_bytes(b"")
    found = weights.Located(hub, "owner/name", SHA)
    mine = tmp_path / "mine" / "vq.ckpt"
    assert weights.find_file(found, ["vq.ckpt"], str(mine), "model.vq_decoder") == mine
    assert weights.find_file(found, ["vq.ckpt"], str(mine.parent), "model.vq_decoder") == mine
    for other in ("owner/other", str(hub / "part" / "vq.ckpt"), None):
        assert weights.find_file(found, ["vq.ckpt"], other, "model.vq_decoder") == hub / "vq.ckpt"
