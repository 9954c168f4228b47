"""The run folder: run.json says what its images are made of, and `open_folder` lets in only a run that fits."""

import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sjdvp import __version__
from sjdvp.config import RunConfig
from sjdvp.errors import FolderError
from sjdvp.runs.atomic import refusals, write_atomic
from sjdvp.runs.fields import inner, is_whole, listed, number, optional, text, whole
from sjdvp.runs.layout import IMAGES, PROMPTS, RUN, log_paths
from sjdvp.runs.locks import folder_lock, is_drawn
from sjdvp.runs.prompts.model import Prompt, PromptSet
from sjdvp.runs.prompts_log import read_prompts_log
from sjdvp.runs.seeds import new_run_seed
from sjdvp.runs.sharding import Selection
from sjdvp.runs.strict_json import load_json

SCHEMA = "sjdvp.run/1"
PickWindow = Callable[[RunConfig], int]
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "Pillow")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which images one command asks of a folder (all of its shards together)."""

    images_per_prompt: int = 1
    selection: Selection = dataclasses.field(default_factory=Selection)

    def as_json(self) -> dict[str, Any]:
        """Return the plain JSON form that run.json holds."""
        indices = self.selection.indices
        return {
            "images_per_prompt": self.images_per_prompt,
            "indices": None if indices is None else [list(pair) for pair in indices],
            "limit": self.selection.limit,
        }

    @classmethod
    def from_json(cls, plain: object) -> "Wanted":
        """Read the plain JSON form back; raises ValueError when it is none."""
        indices = optional(listed, plain, "indices")
        ranges = None if indices is None else tuple(map(_range, indices))
        return cls(
            whole(plain, "images_per_prompt", 1), Selection(ranges, optional(whole, plain, "limit"))
        )


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What run.json says."""

    seed: int
    fingerprint: str
    pixel_settings: Mapping[str, Any]
    wanted: tuple[Wanted, ...]  # every command that has drawn into the folder
    plain: Mapping[str, Any]  # all of it, as stored

    def window(self, _: RunConfig) -> int:
        """Return the window of its images: what `auto` means here."""
        return int(self.pixel_settings["decoder"]["window"])


def read_run(root: Path) -> RunInfo | None:
    """Return what run.json says; None when there is none. Raises FolderError when it cannot be read."""
    path = root / RUN
    try:
        return _info(load_json(path.read_bytes()))
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        file = next(place for place in (root, *root.parents) if place.exists())
        raise FolderError(
            f"{file} is a file, not a folder", "give the folder of a run, or a new name"
        ) from error
    except (OSError, ValueError) as error:
        advice = "put back what stood there, or use another --out"
        raise FolderError(f"{path.name} in {root.name} cannot be read: {error}", advice) from error


def _info(plain: Any) -> RunInfo:
    """Take what others rely on out of run.json; raises ValueError for a value that cannot have been written there."""
    for key in ("pixel_settings.model.backbone", "pixel_settings.decoder.preset"):
        text(plain, key)
    number(plain, "pixel_settings.sampling.temperature")
    whole(plain, "pixel_settings.decoder.window", 1)
    if "revision" in plain:
        optional(text, plain, "revision")
    wanted = tuple(map(Wanted.from_json, listed(plain, "wanted")))
    if not wanted:
        raise ValueError("wanted must name what was asked for, found []")
    return RunInfo(
        whole(plain, "seed"),
        text(plain, "fingerprint"),
        inner(plain, "pixel_settings"),
        wanted,
        plain,
    )


def _range(pair: object) -> tuple[int, int]:
    if not (isinstance(pair, list) and len(pair) == 2 and all(map(is_whole, pair))):
        raise ValueError(f"indices must be pairs of rows, found {pair!r}")
    return pair[0], pair[1]


def require_run(root: Path) -> RunInfo:
    """Return what run.json says; raises FolderError when `root` is no run folder."""
    info = read_run(root)
    if info is None:
        raise FolderError(
            f"{root} is no run folder: it has no {RUN}",
            "give the folder that was --out of sjdvp generate",
        )
    return info


def expected_images(root: Path, info: RunInfo) -> Iterator[tuple[Prompt, int]]:
    """Yield each prompt that any command drew for, with its number of images, in row order."""
    for prompt in read_prompts_log(root):
        count = max(
            (w.images_per_prompt for w in info.wanted if w.selection.takes(prompt.index)), default=0
        )
        if count:
            yield prompt, count


def check_fits(root: Path, config: RunConfig) -> RunInfo | None:
    """Return what run.json says when `config` may draw into `root`, None when the folder is to be begun; writes nothing.

    A folder whose run came to nothing, over a mistake in its settings say, is begun anew by one with others. Raises FolderError
    that names every setting that differs, old and new.
    """
    info = read_run(root)
    if info is None:
        if log_paths(root) or (root / IMAGES).exists():
            raise FolderError(f"{root} holds images or logs but no {RUN}", "use another --out")
        return None
    differences = _differences(info.pixel_settings, settled(config, info.window).pixel_settings())
    if config.run.seed not in (None, info.seed):
        differences.append(f"run.seed: {info.seed} there, {config.run.seed} now")
    if differences and _came_to_nothing(root):
        return None
    if differences:
        raise FolderError(
            f"{root} was made with other settings:\n  " + "\n  ".join(differences),
            "use another --out, or the old settings",
        )
    return info


def _came_to_nothing(root: Path) -> bool:
    """Whether there is no row and no image, and nobody at work on the first."""
    with refusals(RUN):
        rows = any(path.stat().st_size for path in log_paths(root))
        return not rows and not any((root / IMAGES).glob("[!.]*")) and not is_drawn(root)


def settled(config: RunConfig, pick_window: PickWindow) -> RunConfig:
    """Return `config` with a number for its window, where it says `auto`."""
    return config.with_window(pick_window(config)) if config.decoder.window == "auto" else config


def given_window(config: RunConfig) -> int:
    """Pick nothing: raises ConfigError where the window is `auto`."""
    return config.decoder.width


def open_folder(
    root: Path,
    config: RunConfig,
    wanted: Wanted,
    prompts: PromptSet | None,
    argv: Sequence[str],
    pick_window: PickWindow = given_window,
) -> RunInfo:
    """Create the run folder `root`, or come back to it; several processes may do so at the same moment.

    A seed that `config` leaves open is drawn by the first of them, and a window that is `auto` is picked by it. Raises FolderError
    when the folder was made with other settings, StorageError when the disk refuses.
    """
    _make(root)
    with folder_lock(root):
        known = check_fits(root, config)
        if known is None:
            (root / PROMPTS).unlink(missing_ok=True)  # of a run that came to nothing
        plain = dict(known.plain) if known else _first(settled(config, pick_window), prompts, argv)
        if wanted.as_json() not in plain["wanted"]:
            plain["wanted"] = [*plain["wanted"], wanted.as_json()]
            write_atomic(
                root / RUN, json.dumps(plain, indent=1, allow_nan=False).encode("ascii") + b"\n"
            )
        with refusals(IMAGES):
            (root / IMAGES).mkdir(exist_ok=True)
    return require_run(root)


def _make(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FolderError(
            f"cannot make the folder {root}: {error}", "give another --out"
        ) from error


def _first(config: RunConfig, prompts: PromptSet | None, argv: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "fingerprint": config.fingerprint(),
        "seed": new_run_seed() if config.run.seed is None else config.run.seed,
        "pixel_settings": config.pixel_settings(),
        "settings": dataclasses.asdict(config),
        "wanted": [],
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


def _about(prompts: PromptSet) -> dict[str, Any]:
    return {
        "source": prompts.source,
        "format": prompts.format,
        "count": len(prompts),
        "sha256": prompts.digest,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    # A setting that did not exist yet when the folder was begun had its default's effect.
    was, now = _flat(RunConfig().pixel_settings()) | _flat(old), _flat(new)
    keys = [*now, *(key for key in was if key not in now)]
    return [
        f"{key}: {was.get(key, 'absent')!r} there, {now.get(key, 'absent')!r} now"
        for key in keys
        if was.get(key, "absent") != now.get(key, "absent")
    ]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= (
            _flat(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": value}
        )
    return flat
