"""Finished pictures in the folder shape that an evaluator wants: hard links, never a wrong pairing of prompt and picture."""

from dataclasses import dataclass
from pathlib import Path

LAYOUTS = ("geneval", "t2i-compbench", "dpg", "hpsv2", "flat", "imagefolder")


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was exported: pictures written, and pictures left out with the reason."""

    written: int
    left_out: tuple[str, ...]


def export_folder(out: Path, target: Path, layout: str) -> ExportReport:
    """Link every valid picture of the run folder `out` into `target`; a picture that fails its check is left out.

    Files that are there already with the same bytes are kept. Raises FolderError when `out` is no run folder or `target` holds
    something else under a name that is needed, StorageError when the disk refuses.
    """
    raise NotImplementedError
