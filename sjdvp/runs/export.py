"""Finished images in the folder shape that an evaluator wants: hard links, never a wrong pairing of prompt and image."""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sjdvp.errors import ConfigError, FolderError
from sjdvp.runs import evaluators
from sjdvp.runs.atomic import refusals, write_atomic
from sjdvp.runs.check import image_problem
from sjdvp.runs.evaluators import Grid, LeftOut, Link, Shown, Table, grid_png
from sjdvp.runs.folder import expected_images, require_run
from sjdvp.runs.layout import IMAGES
from sjdvp.runs.log import Entry, read_log

LAYOUTS = tuple(evaluators.LAYOUTS)

_NO_LINK = {
    errno.EXDEV,
    errno.EPERM,
    errno.ENOTSUP,
    errno.EMLINK,
}  # another disk, or one without hard links: copy


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was exported: images placed, and a line for each that was left out."""

    written: int
    left_out: tuple[str, ...]


def export_folder(out: Path, target: Path, layout: str) -> ExportReport:
    """Link every valid image of the run folder `out` into `target`; a image that fails its check is left out.

    Files that are there already with the same bytes are kept. Raises FolderError when `out` is no run folder, when two images
    come to one name, or when `target` holds something else under a name that is needed; StorageError when the disk refuses.
    """
    if layout not in evaluators.LAYOUTS:
        raise ConfigError(f"unknown layout {layout!r}", f"known layouts: {', '.join(LAYOUTS)}")
    if target.resolve().is_relative_to((out / IMAGES).resolve()):
        raise FolderError(f"{target} is where the run keeps its images", "export to another folder")
    if os.path.isfile(target):  # noqa: PTH113 (that of Path fails where the folder cannot be read)
        raise FolderError(f"{target} is a file, not a folder", "export to a folder")
    left_out: list[str] = []
    items = list(evaluators.LAYOUTS[layout](list(_shown(out, left_out))))
    images = [item for item in items if isinstance(item, Link | Grid)]
    _require_own_names(images)
    for image in images:
        _place(target / image.name, image)
    for table in (item for item in items if isinstance(item, Table)):
        _write(target / table.name, table.data)
    left_out += [item.reason for item in items if isinstance(item, LeftOut)]
    return ExportReport(len(images), tuple(left_out))


def _require_own_names(images: Sequence[Link | Grid]) -> None:
    """Raise FolderError, before anything is written, when two rows come to one name: ids may differ in signs that no name has."""
    rows: dict[str, int] = {}
    for image in images:
        other = rows.setdefault(image.name, image.row)
        if other != image.row:
            raise FolderError(
                f"rows {other} and {image.row} of the prompts would both be {image.name}",
                "give them other ids in another run folder, or take a layout that goes by row: --layout flat",
            )


def _shown(out: Path, left_out: list[str]) -> Iterator[Shown]:
    info = require_run(out)
    entries = read_log(out)
    owners = {entry.sha256: entry for entry in entries.values() if entry.ok}
    samples = max(wanted.images_per_prompt for wanted in info.wanted)
    for prompt, count in expected_images(out, info):
        images: list[Path | None] = [None] * samples
        for sample in range(count):
            entry = entries.get((prompt.index, sample))
            problem = _problem(out, entry, owners)
            if entry is None or entry.file is None or problem:
                left_out.append(f"row {prompt.index}, sample {sample}: {problem}")
            else:
                images[sample] = out / entry.file
        yield Shown(prompt, tuple(images))


def _problem(out: Path, entry: Entry | None, owners: dict[str | None, Entry]) -> str:
    if entry is None:
        return "not drawn yet"
    return image_problem(out, entry, owners) if entry.ok else "failed"


def _place(path: Path, item: Link | Grid) -> None:
    if isinstance(item, Link) and not path.exists():
        _link(path, item.image)
        return
    data = item.image.read_bytes() if isinstance(item, Link) else grid_png(item.images)
    if not path.exists():
        _write(path, data)
    elif path.read_bytes() != data:
        raise FolderError(f"{path} exists and is another image", "export to an empty folder")


def _link(path: Path, image: Path) -> None:
    with refusals(path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.hardlink_to(image)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            write_atomic(path, image.read_bytes())


def _write(path: Path, data: bytes) -> None:
    with refusals(path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
