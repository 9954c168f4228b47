"""Export of finished images in the folder layout that an evaluator reads: hard links."""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sjdvp.errors import ConfigError, FolderError
from sjdvp.runs import evaluators
from sjdvp.runs.atomic import storage_errors, write_atomic
from sjdvp.runs.check import image_problem
from sjdvp.runs.evaluators import (
    ExportedGrid,
    ExportedImage,
    LeftOut,
    MetadataFile,
    PromptImages,
    grid_png,
)
from sjdvp.runs.folder import RunFolder
from sjdvp.runs.log import LogEntry
from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.sharding import IMAGES

LAYOUTS = tuple(evaluators.LAYOUTS)

# Another disk, or one without hard links: copy.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK}


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The number of images exported, and a line for each that was left out."""

    written: int
    left_out: tuple[str, ...]


def export_folder(out: Path, target: Path, layout: str) -> ExportReport:
    """Link every valid image of the run folder `out` into `target`, leaving out the others.

    Files that exist already with the same bytes are kept. Raises FolderError when `out` is not a
    run folder, when two images get the same name, or when `target` has another file of a needed
    name; StorageError.
    """
    if layout not in evaluators.LAYOUTS:
        raise ConfigError(f"unknown layout {layout!r}", f"known layouts: {', '.join(LAYOUTS)}")
    if target.resolve().is_relative_to((out / IMAGES).resolve()):
        raise FolderError(f"{target} is inside the images of the run", "export to another folder")
    if os.path.isfile(target):  # noqa: PTH113 (that of Path fails where the folder cannot be read)
        raise FolderError(f"{target} is a file, not a folder", "export to a folder")
    left_out: list[str] = []
    items = list(evaluators.LAYOUTS[layout](list(_prompt_images(out, left_out))))
    images = [item for item in items if isinstance(item, ExportedImage | ExportedGrid)]
    _require_own_names(images)
    for image in images:
        _place(target / image.name, image)
    for table in (item for item in items if isinstance(item, MetadataFile)):
        _write(target / table.name, table.data)
    left_out += [item.reason for item in items if isinstance(item, LeftOut)]
    return ExportReport(len(images), tuple(left_out))


def _require_own_names(images: Sequence[ExportedImage | ExportedGrid]) -> None:
    """Raise FolderError, before anything is written, when the images of two rows get the same name.

    Different ids can do that, because some characters cannot be in a file name.
    """
    rows: dict[str, int] = {}
    for image in images:
        other = rows.setdefault(image.name, image.row)
        if other != image.row:
            raise FolderError(
                f"prompt rows {other} and {image.row} would both be {image.name}",
                "use a layout that numbers images by row: --layout flat",
            )


def _prompt_images(out: Path, left_out: list[str]) -> Iterator[PromptImages]:
    folder = RunFolder.read(out)
    entries = folder.log()
    owners = {entry.sha256: entry for entry in entries.values() if entry.ok}
    samples = max(wanted.images_per_prompt for wanted in folder.info.wanted)
    for prompt, expected in folder.expected():
        images: list[Path | None] = [None] * samples
        for sample in expected:
            entry = entries.get((prompt.index, sample))
            problem = _problem(out, prompt, entry, owners)
            if entry is None or entry.file is None or problem:
                left_out.append(f"row {prompt.index}, sample {sample}: {problem}")
            else:
                images[sample] = out / entry.file
        yield PromptImages(prompt, tuple(images))


def _problem(
    out: Path, prompt: Prompt, entry: LogEntry | None, owners: dict[str | None, LogEntry]
) -> str:
    if entry is None:
        return "not generated yet"
    if not entry.is_of(prompt):
        return "generated from an earlier text of its prompt"
    return image_problem(out, entry, owners) if entry.ok else "failed"


def _place(path: Path, item: ExportedImage | ExportedGrid) -> None:
    if isinstance(item, ExportedImage) and not path.exists():
        _link(path, item.image)
        return
    data = item.image.read_bytes() if isinstance(item, ExportedImage) else grid_png(item.images)
    if not path.exists():
        _write(path, data)
    elif path.read_bytes() != data:
        raise FolderError(f"{path} exists with other content", "export to an empty folder")


def _link(path: Path, image: Path) -> None:
    with storage_errors(path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.hardlink_to(image)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            write_atomic(path, image.read_bytes())


def _write(path: Path, data: bytes) -> None:
    with storage_errors(path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
