"""Run folders as a report sees them: settings, the last row of every image, the columns that came with the prompts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.errors import FolderError
from sjdvp.presets import PRESETS
from sjdvp.runs.folder import RunFolder
from sjdvp.runs.jsonl import JsonRow
from sjdvp.runs.log import ImageKey, log_rows
from sjdvp.runs.prompts_log import read_prompts_log
from sjdvp.runs.run_json import RunInfo
from sjdvp.runs.sharding import PROMPTS, RUN


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder, read."""

    name: str  # what it is called in tables: its decoder, or its folder where decoders clash
    root: Path
    info: RunInfo
    rows: Mapping[ImageKey, JsonRow]  # finished and failed images, in the order of the prompts
    extras: Mapping[int, Mapping[str, Any]]  # columns carried with the prompts, by prompt row

    @property
    def ok(self) -> dict[ImageKey, JsonRow]:
        """The images that were drawn."""
        return {key: row for key, row in self.rows.items() if row["status"] == "ok"}

    @property
    def failed(self) -> list[JsonRow]:
        """The images that were not."""
        return [row for row in self.rows.values() if row["status"] != "ok"]

    @property
    def decoder(self) -> str:
        """Name of the decoder preset."""
        return str(self.info.pixel_settings["decoder"]["preset"])

    @property
    def window(self) -> int:
        """Codes looked at in one forward."""
        return int(self.info.pixel_settings["decoder"]["window"])

    @property
    def greedy(self) -> bool:
        """Whether the likeliest code was taken always: another distribution than that of sampling."""
        return self.info.pixel_settings["sampling"]["temperature"] == 0

    @property
    def lossless(self) -> bool:
        """Whether every row says that its tokens follow exactly the model's distribution."""
        return bool(self.rows) and all(row.get("lossless") is True for row in self.rows.values())


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Read run folders, and those that lie in a folder of several (as `sjdvp compare` makes it).

    Raises FolderError when a path holds no run folder or a log cannot be read.
    """
    roots = list(dict.fromkeys(root for path in paths for root in _roots(path)))
    infos = [RunFolder.read(root).info for root in roots]
    names = _names(roots, infos)
    return [_load(name, root, info) for name, root, info in zip(names, roots, infos, strict=True)]


def _roots(path: Path) -> list[Path]:
    try:
        if (path / RUN).exists() or not path.is_dir():
            return [path]
        inside = [child for child in path.iterdir() if (child / RUN).is_file()]
    except OSError as error:
        raise FolderError(
            f"cannot read {path}: {error.strerror}", "run as the user who may read it"
        ) from error
    if not inside:
        raise FolderError(
            f"{path} is not a run folder and has none in it",
            "give the folder that was --out of generate or compare",
        )
    order = list(PRESETS)
    known = {child: child.name.partition(",")[0] for child in inside}
    return sorted(
        inside,
        key=lambda child: (
            order.index(known[child]) if known[child] in order else len(order),
            child.name,
        ),
    )


def _names(roots: Sequence[Path], infos: Sequence[RunInfo]) -> list[str]:
    """Return names that differ: decoders, else folders, else folders within their parents."""
    absolute = [root.resolve() for root in roots]
    choices: Iterable[list[str]] = (
        [str(info.pixel_settings["decoder"]["preset"]) for info in infos],
        [root.name for root in absolute],
        [f"{root.parent.name}/{root.name}" for root in absolute],
    )
    return next(
        (names for names in choices if max(Counter(names).values()) == 1),
        [str(root) for root in roots],
    )


def _load(name: str, root: Path, info: RunInfo) -> Run:
    extras = (
        {prompt.index: prompt.extra for prompt in read_prompts_log(root)}
        if (root / PROMPTS).exists()
        else {}
    )
    return Run(name, root, info, _last_rows(root), extras)


def _last_rows(root: Path) -> dict[ImageKey, JsonRow]:
    """Return the last attempt at each image, from all logs of the folder."""
    last: dict[ImageKey, tuple[tuple[int, str], JsonRow]] = {}
    for entry, row in log_rows(root):
        if entry.key not in last or last[entry.key][0] <= entry.order:
            last[entry.key] = (entry.order, row)
    return {key: last[key][1] for key in sorted(last)}
