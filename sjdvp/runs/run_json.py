"""run.json: the settings that a run folder's images are made with, and what was asked for."""

import dataclasses
import functools
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sjdvp import __version__
from sjdvp.config import RunConfig, from_table
from sjdvp.errors import ConfigError, FolderError
from sjdvp.runs.atomic import write_atomic
from sjdvp.runs.jsonl import (
    absent_or,
    flag,
    inner,
    is_whole,
    listed,
    load_json,
    number,
    optional,
    text,
    whole,
)
from sjdvp.runs.prompts.model import Prompt, PromptSet
from sjdvp.runs.sharding import RUN, Seeds, Selection, new_run_seed

SCHEMA = "sjdvp.run/1"
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "Pillow")

PickWindow = Callable[[RunConfig], int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The images that one command asks of a folder, all of its shards together."""

    images_per_prompt: int = 1
    selection: Selection = dataclasses.field(default_factory=Selection)
    sample: int | None = None  # the only one of each prompt; None: all
    tokens: bool = False  # whether their image tokens are saved too

    def samples(self, prompt: Prompt) -> range:
        """Return the samples of a prompt that are asked for."""
        if not self.selection.takes(prompt.index):
            return range(0)
        count = prompt.copies(self.images_per_prompt)
        if self.sample is not None:
            return range(self.sample, min(self.sample + 1, count))
        return range(count)

    def covers(self, row: int, sample: int) -> bool:
        """Return whether a sample is asked for of a row, if the prompt has so many images."""
        return self.selection.takes(row) and self.sample in (None, sample)

    def as_json(self) -> dict[str, Any]:
        """Return the form in run.json."""
        indices = self.selection.indices
        return {
            "images_per_prompt": self.images_per_prompt,
            "indices": None if indices is None else [list(pair) for pair in indices],
            "limit": self.selection.limit,
            "sample": self.sample,
            "tokens": self.tokens,
        }

    @classmethod
    def from_json(cls, plain: object) -> "Wanted":
        """Read the form in run.json; raises ValueError."""
        indices = optional(listed, plain, "indices")
        ranges = None if indices is None else tuple(map(_range, indices))
        selection = Selection(ranges, optional(whole, plain, "limit"))
        count = whole(plain, "images_per_prompt", 1)
        tokens = absent_or(flag, plain, "tokens") or False
        return cls(count, selection, absent_or(whole, plain, "sample"), tokens)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The content of run.json."""

    seed: int
    fingerprint: str
    pixel_settings: Mapping[str, Any]
    wanted: tuple[Wanted, ...]  # of every command that has generated into the folder
    image_seed: int | None  # see `Seeds.only`
    revision: str | None  # of the weights on the hub; None: local or built-in, or not known yet
    plain: Mapping[str, Any]  # all of it, as stored

    @property
    def size(self) -> tuple[int | None, int | None]:
        """Width and height in pixels; None: the model's own."""
        model = self.pixel_settings["model"]
        return model.get("width"), model.get("height")

    @property
    def seeds(self) -> Seeds:
        """The seeds of the images."""
        return Seeds(self.seed, self.image_seed)

    def config(self) -> RunConfig:
        """Return the settings of the command that made the folder; raises FolderError."""
        try:
            return from_table(RunConfig, inner(self.plain, "settings"))
        except (ConfigError, ValueError) as error:
            raise FolderError(
                f"cannot read the settings in {RUN}: {error}", "restore the file"
            ) from error

    def window(self, _: RunConfig) -> int:
        """Return the window of its images: what `auto` means in this folder."""
        return int(self.pixel_settings["decoder"]["window"])

    @classmethod
    def of(cls, plain: Any) -> "RunInfo":
        """Read the parsed file; raises ValueError for anything that `write_run` did not write."""
        for key in ("pixel_settings.model.backbone", "pixel_settings.decoder.preset"):
            text(plain, key)
        number(plain, "pixel_settings.sampling.temperature")
        whole(plain, "pixel_settings.decoder.window", 1)
        wanted = tuple(map(Wanted.from_json, listed(plain, "wanted")))
        if not wanted:
            raise ValueError("wanted must not be empty")
        return cls(
            whole(plain, "seed"),
            text(plain, "fingerprint"),
            inner(plain, "pixel_settings"),
            wanted,
            absent_or(whole, plain, "image_seed"),
            absent_or(text, plain, "revision"),
            plain,
        )


def read_run(root: Path) -> RunInfo | None:
    """Return the content of run.json, None when there is none; raises FolderError."""
    path = root / RUN
    try:
        return RunInfo.of(load_json(path.read_bytes()))
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        file = next(place for place in (root, *root.parents) if place.exists())
        raise FolderError(
            f"{file} is a file, not a folder", "give a run folder, or a new name"
        ) from error
    except (OSError, ValueError) as error:
        raise FolderError(
            f"cannot read {path.name} in {root.name}: {error}",
            "restore the file, or use another --out",
        ) from error


def write_run(root: Path, plain: Mapping[str, Any]) -> RunInfo:
    """Write run.json, holding the folder's lock, and return its content; raises StorageError."""
    text_ = json.dumps(plain, indent=1, allow_nan=False)
    write_atomic(root / RUN, text_.encode("ascii") + b"\n")
    return RunInfo.of(plain)


def first_run(
    config: RunConfig,
    prompts: PromptSet | None,
    argv: Sequence[str],
    wanted: Wanted,
    image_seed: int | None,
) -> dict[str, Any]:
    """Return what run.json of a new folder says; chooses a seed when `config` leaves it open."""
    return {
        "schema": SCHEMA,
        "fingerprint": config.fingerprint(),
        "seed": new_run_seed() if config.run.seed is None else config.run.seed,
        "image_seed": image_seed,
        "revision": None,
        "pixel_settings": config.pixel_settings(),
        "settings": dataclasses.asdict(config),
        "wanted": [wanted.as_json()],
        "argv": list(argv),
        "prompts": None if prompts is None else _about(prompts),
        "versions": {"sjdvp": __version__, "python": platform.python_version()}
        | {name: _version(name) for name in _PACKAGES},
        "hardware": {
            "machine": platform.machine(),
            "system": platform.system(),
            "cpus": os.cpu_count(),
        },
        "created_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    }


def settled(config: RunConfig, pick_window: PickWindow) -> RunConfig:
    """Return `config` with a number for its window, where it says `auto`."""
    return config.with_window(pick_window(config)) if config.decoder.window == "auto" else config


def given_window(config: RunConfig) -> int:
    """Return the window as given; raises ConfigError when it is `auto`."""
    return config.decoder.width


def differences(info: RunInfo, config: RunConfig, image_seed: int | None) -> list[str]:
    """Return a line for each setting of a request that differs from those in run.json."""
    now = _flat(settled(config, info.window).pixel_settings())
    # A setting that did not exist when the folder was made acted as its default does.
    was = _flat(RunConfig().pixel_settings()) | _flat(info.pixel_settings)
    keys = [*now, *(key for key in was if key not in now)]
    lines = [
        f"{key}: {was.get(key, 'absent')!r} there, {now.get(key, 'absent')!r} now"
        for key in keys
        if was.get(key, "absent") != now.get(key, "absent")
    ]
    if config.run.seed not in (None, info.seed):
        lines.append(f"run.seed: {info.seed} there, {config.run.seed} now")
    if info.image_seed != image_seed:
        lines.append(f"image seed: {info.image_seed} there, {image_seed} now")
    return lines


def _range(pair: object) -> tuple[int, int]:
    if not (isinstance(pair, list) and len(pair) == 2 and all(map(is_whole, pair))):
        raise ValueError(f"indices must be pairs of rows, found {pair!r}")
    return pair[0], pair[1]


def _about(prompts: PromptSet) -> dict[str, Any]:
    return {
        "source": prompts.source,
        "format": prompts.format,
        "count": len(prompts),
        "sha256": prompts.digest,
    }


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat
