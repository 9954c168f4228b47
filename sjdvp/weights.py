"""Where weights are: a local folder or file, or a hub id. Imports no torch.

A hub id is `owner/name`, then `@revision` and `/path/in/the/repository` where they are needed.
Downloads go through huggingface_hub, which obeys HF_HOME and HF_HUB_OFFLINE.
"""

import functools
import json
import os
import re
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from sjdvp.config import ModelConfig
from sjdvp.errors import NotCachedError, WeightsError

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<file>.+))?")
_SNAPSHOT = re.compile(
    r"models--(?P<owner>.+?)--(?P<name>.+?)/snapshots/(?P<sha>[0-9a-f]{40})(?P<file>/.+)?"
)
SUFFIXES = frozenset({".safetensors", ".pt", ".pth", ".bin", ".ckpt"})
_WANTED = ["*.json", "*.safetensors", "*.tiktoken", "*_tokens.txt"]
_PICKLES = ["*.bin", "*.pth", "*.ckpt"]  # where a repository has no safetensors; many hold both
_OFFLINE = "HF_HUB_OFFLINE"
_TIMEOUT_S = 10  # of the request whether the hub answers
_cache_alone: ContextVar[bool] = ContextVar("cache_alone", default=False)


@dataclass(frozen=True, slots=True)
class Located:
    """Weights on this machine: their path, their name in a log, and their hub revision."""

    path: Path
    name: str
    revision: str | None


def locate(spec: str | None, revision: str | None = None, setting: str = "model.path") -> Located:
    """Return the weights that `spec` names; download them if they are not on this machine.

    Raises WeightsError when there are none: it names the places searched and the command that
    downloads them.
    """
    if not spec:
        raise WeightsError(
            "no weights are given", f"give --model FOLDER or a hub id (the setting {setting})"
        )
    path = Path(spec).expanduser()
    if path.exists():
        return _local(path, revision)
    match = _HUB_ID.fullmatch(spec)
    if match is None or spec.startswith((".", "~")):
        raise WeightsError(
            f"{spec}: no such file or folder ({setting})",
            "give a path that exists, or a hub id owner/name",
        )
    return _download(
        match["repo"],
        match["revision"] or revision,
        match["file"],
        path,
        weights=setting == "model.path",
    )


def pin(model: ModelConfig) -> ModelConfig:
    """Return the settings with hub ids replaced by local paths, and with the revision found.

    The parent of a run does this once; its workers then open paths, never the network. Raises
    WeightsError when the weights or the text encoder are missing. A tokenizer or VQ decoder that
    cannot be had keeps its hub id: the weights' own folder may hold one, and opening the model
    fails if not.
    """
    if model.path is None:
        return model
    weights = locate(model.path, model.revision)
    others: dict[str, Any] = {}
    if model.text_encoder:
        others["text_encoder"] = str(locate(model.text_encoder, setting="model.text_encoder").path)
    for field in ("tokenizer", "vq_decoder"):
        spec = getattr(model, field)
        others[field] = _path_if_reachable(spec, f"model.{field}") if spec else None
    return replace(model, path=str(weights.path), revision=weights.revision, **others)


def _path_if_reachable(spec: str, setting: str) -> str:
    try:
        return str(locate(spec, setting=setting).path)
    except WeightsError:
        return spec


def find_file(weights: Located, names: Iterable[str], other: str | None, setting: str) -> Path:
    """Return the first of the files `names` in the weights' folder, or at `other`, the setting.

    A local file or folder of the setting comes first; a hub id, as in profiles, last: it is for
    weights that come without the file. Raises WeightsError with the places searched.
    """
    folder = weights.path if weights.path.is_dir() else weights.path.parent
    paths = [folder / name for name in names]
    if other is not None and Path(other).expanduser().exists() and not _SNAPSHOT.search(other):
        paths = []
    found = next((path for path in paths if path.is_file()), None)
    if found is None and other is not None:
        given = locate(other, setting=setting).path
        paths += [given / name for name in names] if given.is_dir() else [given]
        found = next((path for path in paths if path.is_file()), None)
    if found is None:
        searched = ", ".join(str(path) for path in paths)
        raise WeightsError(
            f"no file for {setting}; looked for {searched}",
            f"give --set {setting}=FILE or a hub id",
        )
    return found


def called(spec: str | None) -> str | None:
    """Return the name of the weights at `spec`: the hub id of files in the hub's cache."""
    return _local(Path(spec), None).name if spec and _SNAPSHOT.search(spec) else spec


def _local(path: Path, revision: str | None) -> Located:
    snapshot = _SNAPSHOT.search(path.as_posix())
    if snapshot is None:
        return Located(path, path.resolve().name, revision)
    return Located(
        path, f"{snapshot['owner']}/{snapshot['name']}{snapshot['file'] or ''}", snapshot["sha"]
    )


def _download(
    repo: str, revision: str | None, file: str | None, as_path: Path, *, weights: bool
) -> Located:
    """Return a repository, or its file or folder, in the hub's cache.

    A name without a dot is a folder. With `weights` it must hold a model.
    """
    away = _why_not_asked()
    missing, reason = file, away
    is_folder = file is not None and "." not in file.rsplit("/", 1)[-1]
    try:
        if file is not None and not is_folder:
            return _local(
                Path(hf_hub_download(repo, file, revision=revision, local_files_only=bool(away))),
                revision,
            )
        for wanted in (_WANTED, [*_WANTED, *_PICKLES]):
            patterns = [f"{file}/{name}" for name in wanted] if file else wanted
            path = Path(
                snapshot_download(
                    repo, revision=revision, allow_patterns=patterns, local_files_only=bool(away)
                ),
                file or "",
            )
            if any(path.rglob("*.safetensors")):
                break
        missing = _missing(path) if weights else None
        if missing is None:
            return _local(path, revision)
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        reason = away or str(error).strip().splitlines()[0]
    asked = f"{missing} of {repo}" if missing else repo
    command = " ".join(
        [
            "hf download",
            repo,
            *([f"--include '{file}/*'"] if is_folder else [file] if file else []),
            *(["--revision", revision] if revision else []),
        ]
    )
    kind = NotCachedError if _cache_alone.get() else WeightsError
    raise kind(
        f"{asked} is not on this machine and could not be downloaded ({reason}): "
        f"looked for {as_path} and in the cache {HF_HUB_CACHE}",
        f"download it where there is a network: {command}",
    )


@contextmanager
def without_hub() -> Iterator[None]:
    """Use only the cache inside this context."""
    forbidden = _cache_alone.set(True)
    try:
        yield
    finally:
        _cache_alone.reset(forbidden)


def _why_not_asked() -> str:
    """Return why the hub is not asked, or ""."""
    if _cache_alone.get():
        return "only the cache was searched"
    if os.environ.get(_OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE"):
        return f"the hub is not asked, {_OFFLINE} is set"
    return _silence()


@functools.cache
def _silence() -> str:
    """Return how the hub fails to answer, or "" when it answers.

    One short request finds out: without an answer the library's own calls take many minutes.
    """
    try:
        urllib.request.urlopen(
            urllib.request.Request(ENDPOINT, method="HEAD"), timeout=_TIMEOUT_S
        ).close()
    except HTTPError:
        return ""  # an answer
    except (OSError, HTTPException) as error:
        return f"{ENDPOINT} does not answer: {error}"
    return ""


def _missing(folder: Path) -> str | None:
    """Return what a snapshot lacks of its model: a file that its index names, or all weights."""
    for index in folder.glob("*.index.json"):
        named = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        absent = next((name for name in named if not (folder / name).is_file()), None)
        if absent is not None:
            return absent
    found = any(path.suffix in SUFFIXES for path in folder.rglob("*"))
    return None if found else "the weights"
