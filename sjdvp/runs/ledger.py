"""prompts.jsonl: the prompts that a run folder belongs to. Rows may be appended, never changed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sjdvp.errors import FolderError
from sjdvp.runs.jsonl import Appender, Row, read_rows
from sjdvp.runs.layout import PROMPTS
from sjdvp.runs.prompts.model import Prompt
from sjdvp.text import printable


class Ledger:
    """prompts.jsonl open for comparing and appending; its writer must hold the folder's lock."""

    def __init__(self, root: Path) -> None:
        """Open or create the ledger of a run folder; raises FolderError or StorageError."""
        self._file = Appender(root / PROMPTS)
        self._known = list(read_rows(root / PROMPTS))

    def admit(self, prompts: Sequence[Prompt]) -> None:
        """Compare `prompts` with the rows that are known, and append those that are new.

        Raises FolderError when a row has changed. Nothing is appended then.
        """
        rows = [_row(prompt) for prompt in prompts]
        for row in rows:
            index = row["index"]
            if index < len(self._known) and self._known[index] != row:
                raise _changed(self._known[index], row)
        fresh = [row for row in rows if row["index"] >= len(self._known)]
        if fresh:
            self._file.append(fresh)
            self._known += fresh

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_ledger(root: Path) -> Iterator[Prompt]:
    """Yield the prompts that a run folder belongs to, in row order; raises FolderError when there is no ledger to read."""
    return (Prompt(row["index"], row["prompt"], row["id"], row["extra"]) for row in read_rows(root / PROMPTS))


def check_unchanged(root: Path, prompts: Sequence[Prompt]) -> None:
    """Raise FolderError when a prompt differs from the ledger's row; writes nothing."""
    if (root / PROMPTS).exists():
        for known, prompt in zip(read_rows(root / PROMPTS), prompts, strict=False):
            if known != _row(prompt):
                raise _changed(known, _row(prompt))


def _row(prompt: Prompt) -> dict[str, Any]:
    extra = dict(prompt.extra)
    return {"index": prompt.index, "id": prompt.id, "prompt": prompt.text, "digest": prompt.digest, "extra": extra}


def _changed(old: Row, new: Row) -> FolderError:
    key = next(key for key in new if old.get(key) != new[key])
    was, now = (printable(repr(row.get(key)))[:200] for row in (old, new))
    return FolderError(
        f"row {new['index']} of the prompts has changed since this folder was begun: {key} was {was}, is {now}",
        "rows may be appended but not changed: use another --out, or the old prompt file",
    )
