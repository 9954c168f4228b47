"""Images that are generated again, by --overwrite or --reroll, so that it can be interrupted.

A marker file tells where the shard's log ended when it began: an image with a later row is done.
The marker is deleted when all of them are, or by a run that does not ask for it any more.
"""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sjdvp.errors import FolderError
from sjdvp.runs.atomic import storage_errors, write_atomic
from sjdvp.runs.jsonl import inner, load_json, rows_from, whole, whole_end, word
from sjdvp.runs.log import ImageKey, LogEntry
from sjdvp.runs.run_json import Wanted
from sjdvp.runs.sharding import Shard, log_path

KINDS = ("overwrite", "reroll")
Kind = Literal["overwrite", "reroll"]


@dataclass(frozen=True, slots=True)
class Redo:
    """Images to generate again: those of `wanted` that are not in `done`.

    With `overwrite` they keep their seeds; with `reroll` they get new ones.
    """

    kind: Kind
    wanted: Wanted
    done: frozenset[ImageKey]

    def is_due(self, key: ImageKey) -> bool:
        """Return whether the image is still to be generated again."""
        return self.wanted.covers(*key) and key not in self.done


def find_redo(root: Path, shard: Shard) -> Redo | None:
    """Return the redo that is under way, None when there is none; raises FolderError."""
    path, log = _marker(root, shard), log_path(root, shard)
    try:
        plain = load_json(path.read_bytes())
        kind: Kind = "reroll" if word(plain, "kind", KINDS) == "reroll" else "overwrite"
        wanted, end = Wanted.from_json(inner(plain, "wanted")), whole(plain, "log_end")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot read {path.name}: {error}", "delete it") from error
    rows = rows_from(log, end) if log.exists() else ()
    return Redo(kind, wanted, frozenset(LogEntry.of(row, log.name).key for row in rows))


def resumed_redo(root: Path, shard: Shard, kind: Kind, wanted: Wanted) -> Redo:
    """Return the redo under way, or a new one when there is none of this kind and request."""
    found = find_redo(root, shard)
    if found is not None and (found.kind, found.wanted) == (kind, wanted):
        return found
    return Redo(kind, wanted, frozenset())


def begin_redo(root: Path, shard: Shard, redo: Redo) -> None:
    """Write the marker of a redo, unless it is under way; raises StorageError."""
    found = find_redo(root, shard)
    if found is None or (found.kind, found.wanted) != (redo.kind, redo.wanted):
        end = whole_end(log_path(root, shard))
        plain = {"kind": redo.kind, "wanted": redo.wanted.as_json(), "log_end": end}
        write_atomic(_marker(root, shard), json.dumps(plain).encode())


def end_redo(root: Path, shard: Shard) -> None:
    """Delete the marker, if there is one; raises StorageError."""
    with storage_errors(_marker(root, shard).name), contextlib.suppress(FileNotFoundError):
        _marker(root, shard).unlink()


def _marker(root: Path, shard: Shard) -> Path:
    return root / f".redo.shard-{shard.label}.json"
