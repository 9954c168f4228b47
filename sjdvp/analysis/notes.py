"""What was seen of each image, on disk beside the run folders: an interrupted analysis goes on where it was. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

from sjdvp.analysis.metrics import Seen, Sums
from sjdvp.errors import FolderError
from sjdvp.report.load import Run
from sjdvp.runs.jsonl import JsonRow, read_rows
from sjdvp.runs.log import ImageKey


def notes_path(run: Path) -> Path:
    """Return the file of notes that belongs to a run folder."""
    return run.with_name(f"{run.name}.seen.jsonl")


def note(key: ImageKey, sums: Sums) -> JsonRow:
    """Return the row of one image."""
    return {"index": key[0], "sample": key[1], "sums": sums}


def read_notes(runs: Sequence[Run]) -> list[Seen]:
    """Return what was seen of every finished image of the runs; raises FolderError where an image was drawn unseen."""
    return [_read(run) for run in runs]


def _read(run: Run) -> Seen:
    path = notes_path(run.root)
    noted = (
        {(row["index"], row["sample"]): row["sums"] for row in read_rows(path)}
        if path.exists()
        else {}
    )
    unseen = run.ok.keys() - noted.keys()
    if unseen or not run.ok:
        raise FolderError(
            f"{run.root}: {len(unseen) or 'all'} images were not watched",
            "give a new folder as --out",
        )
    return {key: noted[key] for key in run.ok}
