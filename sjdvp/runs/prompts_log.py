"""prompts.jsonl: the prompts that a run folder belongs to. Rows may be appended, never changed."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sjdvp.errors import FolderError
from sjdvp.runs.fields import inner, optional, text, whole
from sjdvp.runs.jsonl import Appender, Row, numbered_rows
from sjdvp.runs.layout import PROMPTS
from sjdvp.runs.prompts.model import Prompt
from sjdvp.text import printable

_KEYS = ("index", "id", "prompt", "digest", "extra")


class PromptsLog:
    """prompts.jsonl open for comparing and appending; its writer must hold the folder's lock."""

    def __init__(self, root: Path) -> None:
        """Open or create the prompts_log of a run folder; raises FolderError or StorageError."""
        self._file = Appender(root / PROMPTS)
        self._known = list(_rows(root))

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_prompts_log(root: Path) -> Iterator[Prompt]:
    """Yield the prompts that a run folder belongs to, in row order; raises FolderError when there is no prompts_log to read."""
    return (Prompt(row["index"], row["prompt"], row["id"], row["extra"]) for row in _rows(root))


def check_unchanged(root: Path, prompts: Sequence[Prompt]) -> None:
    """Raise FolderError when a prompt differs from the prompts_log's row; writes nothing."""
    if (root / PROMPTS).exists():
        for known, prompt in zip(_rows(root), prompts, strict=False):
            if known != _row(prompt):
                raise _changed(known, _row(prompt))


def _rows(root: Path) -> Iterator[Row]:
    """Yield the rows of the prompts_log; raises FolderError, which names the line, for one that `_row` cannot have made."""
    for line, row in numbered_rows(root / PROMPTS):
        try:
            _check(row, line - 1)
        except ValueError as error:
            raise FolderError(
                f"{PROMPTS}: line {line}: {error}",
                "put back what stood there, or use another --out",
            ) from error
        yield row


def _check(row: Row, index: int) -> None:
    text(row, "prompt")
    text(row, "digest")
    optional(text, row, "id")
    inner(row, "extra")
    if whole(row, "index") != index:
        raise ValueError(f"index must be {index}, found {row['index']}")
    unknown = [key for key in row if key not in _KEYS]
    if unknown:
        raise ValueError(
            f"there is no key {printable(unknown[0])!r} in such a row; known keys: {', '.join(_KEYS)}"
        )
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair: not valid text") from error


def _row(prompt: Prompt) -> dict[str, Any]:
    extra = dict(prompt.extra)
    return {
        "index": prompt.index,
        "id": prompt.id,
        "prompt": prompt.text,
        "digest": prompt.digest,
        "extra": extra,
    }


def _changed(old: Row, new: Row) -> FolderError:
    key = next(key for key in new if old.get(key) != new[key])
    was, now = (printable(repr(row.get(key)))[:200] for row in (old, new))
    return FolderError(
        f"row {new['index']} of the prompts has changed since this folder was begun: {key} was {was}, is {now}",
        "rows may be appended but not changed: use another --out, or the old prompt file",
    )
