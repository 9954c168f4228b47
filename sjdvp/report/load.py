"""Run folders as a report reads them, and whether they may be compared."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.errors import FolderError
from sjdvp.jobs import FINISHED
from sjdvp.presets import GREEDY, PRESETS
from sjdvp.runs.folder import RunFolder
from sjdvp.runs.jsonl import JsonRow
from sjdvp.runs.log import ImageKey, log_rows
from sjdvp.runs.prompts_log import read_prompts_log
from sjdvp.runs.run_json import RunInfo
from sjdvp.runs.sharding import PROMPTS, RUN
from sjdvp.text import printable, shortened

# Columns of the log that must be alike in runs that are compared.
_CONDITIONS = ("device", "gpu", "dtype", "quantize", "batch_size", "revision")


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder, read."""

    name: str  # in tables: the decoder, or the folder where two runs have the same decoder
    root: Path
    info: RunInfo
    rows: Mapping[ImageKey, JsonRow]  # the last log row of each image, in the order of the prompts
    extras: Mapping[int, Mapping[str, Any]]  # other columns of the prompt file, by prompt row

    @property
    def ok(self) -> dict[ImageKey, JsonRow]:
        """The finished images, those of which only tokens are to be had among them."""
        return {key: row for key, row in self.rows.items() if row["status"] in FINISHED}

    @property
    def failed(self) -> list[JsonRow]:
        """The failed images."""
        return [row for row in self.rows.values() if row["status"] not in FINISHED]

    @property
    def decoder(self) -> str:
        """Name of the decoder preset."""
        return str(self.info.pixel_settings["decoder"]["preset"])

    @property
    def window(self) -> int:
        """Tokens verified per forward pass."""
        return int(self.info.pixel_settings["decoder"]["window"])

    @property
    def greedy(self) -> bool:
        """Whether the temperature is 0: not the distribution of ordinary sampling."""
        return self.info.pixel_settings["sampling"]["temperature"] == 0

    @property
    def quantize(self) -> str | None:
        """Format of the weights, where they are quantized."""
        found: str | None = self.info.pixel_settings["model"].get("quantize")
        return found

    @property
    def lossless(self) -> bool:
        """Whether every log row says that the decoder is lossless."""
        return bool(self.rows) and all(row.get("lossless") is True for row in self.rows.values())


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Read run folders, and those inside a folder that `sjdvp compare` made.

    Raises FolderError when a path has no run folder or a log cannot be read.
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
            "give the --out folder of generate or compare",
        )
    order = {name: place for place, name in enumerate(PRESETS)}
    decoder = {child: child.name.partition(",")[0] for child in inside}
    return sorted(inside, key=lambda child: (order.get(decoder[child], len(order)), child.name))


def _names(roots: Sequence[Path], infos: Sequence[RunInfo]) -> list[str]:
    """Return names that differ: decoders, else folders, else folders with their parents."""
    absolute = [root.resolve() for root in roots]
    choices: Iterable[list[str]] = (
        [str(info.pixel_settings["decoder"]["preset"]) for info in infos],
        [root.name for root in absolute],
        [f"{root.parent.name}/{root.name}" for root in absolute],
    )
    different = (names for names in choices if max(Counter(names).values()) == 1)
    return next(different, [str(root) for root in roots])


def _load(name: str, root: Path, info: RunInfo) -> Run:
    prompts = read_prompts_log(root) if (root / PROMPTS).exists() else []
    extras = {prompt.index: prompt.extra for prompt in prompts}
    return Run(name, root, info, _last_rows(root), extras)


def _last_rows(root: Path) -> dict[ImageKey, JsonRow]:
    """Return the last attempt at each image, from all logs of the folder."""
    last: dict[ImageKey, tuple[tuple[int, str], JsonRow]] = {}
    for entry, row in log_rows(root):
        if entry.key not in last or last[entry.key][0] <= entry.order:
            last[entry.key] = (entry.order, row)
    return {key: last[key][1] for key in sorted(last)}


def unfair(runs: Sequence[Run]) -> list[str]:
    """Return what differs between the runs besides the decoder; empty when they are comparable."""
    first = _first(runs)
    others = [run for run in runs if run is not first]
    return [f"{run.name}: {line}" for run in others for line in _differences(first, run)]


def require_fair(runs: Sequence[Run]) -> None:
    """Raise FolderError, naming every difference, when the runs differ in more than the decoder."""
    differences = unfair(runs)
    if differences:
        lines = "".join(f"\n  {line}" for line in differences)
        raise FolderError(
            f"these runs differ from {_first(runs).name} in more than the decoder:{lines}",
            "generate them with `sjdvp compare`, or with equal settings, seed, prompts and device",
        )


def _first(runs: Sequence[Run]) -> Run:
    """Return the run that the others are compared with: one whose decoder is not greedy."""
    return next((run for run in runs if run.decoder not in GREEDY), runs[0])


def _differences(first: Run, other: Run) -> Iterator[str]:
    was, now = _settings(first), _settings(other)
    greedy = other.decoder in GREEDY  # such a decoder sets the temperature to 0
    for key in sorted(was.keys() | now.keys()):
        if was.get(key) != now.get(key) and not (greedy and key == "sampling.temperature"):
            yield f"{key} is {now.get(key)!r}, not {was.get(key)!r}"
    if first.info.seed != other.info.seed:
        yield f"the run seed is {other.info.seed}, not {first.info.seed}"
    yield from _prompt_differences(first, other)
    for key in _CONDITIONS:
        before, after = _column(first, key), _column(other, key)
        if before and after and before != after:
            yield f"{key} is {', '.join(after)}, not {', '.join(before)}"


def _prompt_differences(first: Run, other: Run) -> Iterator[str]:
    both = sorted(first.rows.keys() & other.rows.keys())
    changed = [key for key in both if first.rows[key]["prompt"] != other.rows[key]["prompt"]]
    if changed:
        prompt = printable(shortened(str(other.rows[changed[0]]["prompt"])))
        yield f"prompt row {changed[0][0]} is another prompt, {prompt!r}"
    if first.rows and other.rows and not both:
        yield "it has no image in common"


def _settings(run: Run) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section in ("model", "sampling")
        for key, value in _table(run.info.pixel_settings.get(section)).items()
    }


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _column(run: Run, key: str) -> list[str]:
    return sorted({str(row.get(key)) for row in run.ok.values()})
