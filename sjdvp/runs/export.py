"""Export of finished images in the folder layout that an evaluator or trainer reads."""

import contextlib
import errno
import filecmp
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sjdvp.errors import ConfigError, FolderError
from sjdvp.runs import evaluators
from sjdvp.runs.atomic import storage_errors, sync_folder, write_atomic
from sjdvp.runs.check import image_problem
from sjdvp.runs.evaluators import (
    IMAGE_SUFFIXES,
    ExportedGrid,
    ExportedImage,
    ExportedTar,
    ExportFile,
    MetadataFile,
    NotExported,
    PromptImages,
    grid_png,
)
from sjdvp.runs.folder import RunFolder
from sjdvp.runs.log import OUTDATED, LogEntry
from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.sharding import IMAGES, RUN, Seeds
from sjdvp.text import counted

LAYOUTS = tuple(evaluators.LAYOUTS)

# Another disk, or one without hard links: copy.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK}


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The number of images exported, and a line for each that was left out."""

    written: int
    left_out: tuple[str, ...]


def export_folder(out: Path, target: Path, layout: str, *, overwrite: bool = False) -> ExportReport:
    """Write every valid image of the run folder `out` into `target`, leaving out the others.

    Images are hard links where the disk allows it. Files that exist already with the same bytes are
    kept. With `overwrite`, files of an earlier export are replaced. Raises FolderError when `out`
    is not a run folder, when two images get the same name, or when `target` has an earlier export
    with other names or contents; StorageError.
    """
    _check_target(out, target, layout)
    left_out: list[str] = []
    items = list(evaluators.LAYOUTS[layout](list(_prompt_images(out, left_out))))
    left_out += [item.reason for item in items if isinstance(item, NotExported)]
    files = [item for item in items if not isinstance(item, NotExported)]
    _require_own_names(files)
    _clear(target, {item.name for item in files}, overwrite=overwrite)
    for item in files:
        _place(target / item.name, item, overwrite=overwrite)
    return ExportReport(sum(map(_count, files)), tuple(left_out))


def _check_target(out: Path, target: Path, layout: str) -> None:
    if layout not in evaluators.LAYOUTS:
        raise ConfigError(f"unknown layout {layout!r}", f"known layouts: {', '.join(LAYOUTS)}")
    # Not Path.is_file, which fails where the folder cannot be read: that is reported later.
    is_file = os.path.isfile
    if target.resolve().is_relative_to((out / IMAGES).resolve()) or is_file(target / RUN):
        raise FolderError(f"{target} is part of a run folder", "export to another folder")
    if is_file(target):
        raise FolderError(f"{target} is a file, not a folder", "export to a folder")


def _count(item: ExportFile) -> int:
    """Return the number of images of an item; a grid is one image."""
    if isinstance(item, ExportedTar):
        return item.images
    return int(isinstance(item, ExportedImage | ExportedGrid))


def _require_own_names(files: Sequence[ExportFile]) -> None:
    """Raise FolderError, before anything is written, when the images of two rows get the same name.

    Different ids can do that, because some characters cannot be in a file name.
    """
    rows: dict[str, int] = {}
    for image in files:
        if not isinstance(image, ExportedImage | ExportedGrid):
            continue
        other = rows.setdefault(image.name, image.row)
        if other != image.row:
            raise FolderError(
                f"prompt rows {other} and {image.row} would both be {image.name}",
                "give them different names, or use a layout that numbers images by row: "
                "--layout flat",
            )


def _clear(target: Path, names: set[str], *, overwrite: bool) -> None:
    """Remove the files of an earlier export that this one does not write.

    An evaluator would pair them with wrong prompts. Raises FolderError without `overwrite`.
    """
    foreign = [path for path in _exported(target) if str(path.relative_to(target)) not in names]
    if foreign and not overwrite:
        example = foreign[0].relative_to(target)
        raise FolderError(
            f"{target} has {counted(len(foreign), 'file')} of another export, such as {example}",
            "export to another folder, or replace them with --overwrite",
        )
    for path in foreign:
        with storage_errors(path.name):
            path.unlink()
        with contextlib.suppress(OSError):  # not empty, or the target itself
            path.parent.rmdir()


def _exported(target: Path) -> list[Path]:
    """Return the files below `target` that an export may have written; results stay untouched."""
    files = sorted(path for path in target.rglob("*") if path.is_file() or path.is_symlink())
    images = {path.with_suffix("") for path in files if path.suffix.lower() in IMAGE_SUFFIXES}
    return [
        path
        for path in files
        if path.suffix.lower() in {*IMAGE_SUFFIXES, ".tar"}
        or path.name == "metadata.jsonl"
        or (path.suffix == ".txt" and path.with_suffix("") in images)
    ]


def _prompt_images(out: Path, left_out: list[str]) -> Iterator[PromptImages]:
    folder = RunFolder.read(out)
    entries = folder.log()
    owners = {entry.sha256: entry for entry in entries.values() if entry.ok}
    settings = folder.info.pixel_settings["model"]
    model = Path(str(settings.get("path") or settings["backbone"])).name
    samples = max(wanted.images_per_prompt for wanted in folder.info.wanted)
    for prompt in folder.prompts():  # also those that nobody asked for: layouts count prompts
        images: list[Path | None] = [None] * prompt.copies(samples)
        for sample in folder.samples(prompt):
            entry = entries.get((prompt.index, sample))
            problem = _problem(out, prompt, entry, owners, folder.info.seeds)
            if entry is None or entry.file is None or problem:
                left_out.append(f"row {prompt.index}, sample {sample}: {problem}")
            else:
                images[sample] = out / entry.file
        yield PromptImages(prompt, tuple(images), model)


def _problem(
    out: Path,
    prompt: Prompt,
    entry: LogEntry | None,
    owners: dict[str | None, LogEntry],
    seeds: Seeds,
) -> str:
    if entry is None:
        return "not generated yet"
    if not entry.is_of(prompt, seeds):
        return OUTDATED
    if entry.status == "tokens":
        return "tokens only, no image"
    return image_problem(out, entry, owners) if entry.ok else "failed"


def _place(path: Path, item: ExportFile, *, overwrite: bool) -> None:
    with storage_errors(path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(item, ExportedTar):
        _place_tar(path, item, overwrite=overwrite)
        return
    if isinstance(item, ExportedImage):
        if path.exists() and not filecmp.cmp(path, item.image, shallow=False):
            _replace(path, overwrite=overwrite)
        if not path.exists():
            _link(path, item.image)
        return
    data = item.data if isinstance(item, MetadataFile) else grid_png(item.images)
    if path.exists() and path.read_bytes() == data:
        return
    # Metadata of the same images may change: more rows are finished, or texts were corrected.
    if path.exists() and not isinstance(item, MetadataFile):
        _replace(path, overwrite=overwrite)
    write_atomic(path, data)


def _place_tar(path: Path, item: ExportedTar, *, overwrite: bool) -> None:
    """Write a tar file whose bytes depend on nothing but its members."""
    temporary = path.with_name(f".{path.name}.tmp")
    with storage_errors(path.name):
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, content in item.members:
                data = content.read_bytes() if isinstance(content, Path) else content
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        if path.exists() and filecmp.cmp(path, temporary, shallow=False):
            temporary.unlink()
            return
    if path.exists():
        try:
            _replace(path, overwrite=overwrite)
        except FolderError:
            temporary.unlink()
            raise
    with storage_errors(path.name):
        temporary.replace(path)
        sync_folder(path.parent)


def _replace(path: Path, *, overwrite: bool) -> None:
    """Remove a file of an earlier export that has other content."""
    if not overwrite:
        raise FolderError(
            f"{path} exists with other content",
            "export to another folder, or replace it with --overwrite",
        )
    with storage_errors(path.name):
        path.unlink()


def _link(path: Path, image: Path) -> None:
    with storage_errors(path.name):
        try:
            path.hardlink_to(image)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            write_atomic(path, image.read_bytes())
