"""prompts.jsonl: the prompts of a run folder. Rows may be appended, never changed."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sjdvp.errors import FolderError
from sjdvp.runs.atomic import Closing, write_atomic
from sjdvp.runs.jsonl import (
    Appender,
    JsonRow,
    absent_or,
    encode_row,
    inner,
    number,
    numbered_rows,
    optional,
    text,
    whole,
)
from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.sharding import PROMPTS, Ranges, in_ranges
from sjdvp.text import printable

_KEYS = ("index", "id", "prompt", "digest", "extra", "asked")
_ASKED: dict[str, Callable[[object, str], object]] = {
    **dict.fromkeys(("n", "seed", "width", "height"), whole),
    **dict.fromkeys(("negative_prompt", "filename"), text),
    "cfg_scale": number,
}


class PromptsLog(Closing):
    """prompts.jsonl open for comparing and appending; the caller must hold the folder's lock."""

    def __init__(self, root: Path) -> None:
        """Open or create the file; raises FolderError or StorageError."""
        self._file = Appender(root / PROMPTS)
        self._known = list(_rows(root))

    def add(self, prompts: Sequence[Prompt]) -> None:
        """Append the prompts that are new, after comparing the others with their rows.

        Raises FolderError when a row has changed, and appends nothing then.
        """
        rows = [_row(prompt) for prompt in prompts]
        for row in rows:
            index = row["index"]
            if index < len(self._known) and self._known[index] != row:
                raise _changed(self._known[index], row)
        new = [row for row in rows if row["index"] >= len(self._known)]
        if new:
            self._file.append(new)
            self._known += new

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_prompts_log(root: Path) -> Iterator[Prompt]:
    """Yield the prompts of a run folder in row order; raises FolderError."""
    return (
        Prompt(row["index"], row["prompt"], row["id"], row["extra"], row.get("asked", {}))
        for row in _rows(root)
    )


def check_unchanged(root: Path, prompts: Sequence[Prompt], updates: Ranges = ()) -> None:
    """Raise FolderError when a prompt differs from its row in prompts.jsonl; writes nothing.

    Those in the rows `updates` may differ.
    """
    if (root / PROMPTS).exists():
        for known, prompt in zip(_rows(root), prompts, strict=False):
            if known != _row(prompt) and not in_ranges(prompt.index, updates):
                raise _changed(known, _row(prompt))


def update_rows(root: Path, prompts: Sequence[Prompt], updates: Ranges) -> None:
    """Replace the rows `updates` of prompts.jsonl that changed; raises as `check_unchanged`.

    Holding the folder's lock. Images of another text count as not generated (`LogEntry.is_of`).
    """
    check_unchanged(root, prompts, updates)
    if not (root / PROMPTS).exists():
        return
    known = list(_rows(root))
    rows = [_row(prompt) for prompt in prompts[: len(known)]] + known[len(prompts) :]
    if rows != known:
        write_atomic(root / PROMPTS, b"".join(map(encode_row, rows)))


def _rows(root: Path) -> Iterator[JsonRow]:
    """Yield the rows of prompts.jsonl; raises FolderError for one that `_row` cannot have made."""
    for line, row in numbered_rows(root / PROMPTS):
        try:
            _check(row, line - 1)
        except ValueError as error:
            raise FolderError(
                f"{PROMPTS}: line {line}: {error}", "restore the line, or use another --out"
            ) from error
        yield row


def _check(row: JsonRow, index: int) -> None:
    text(row, "prompt")
    text(row, "digest")
    optional(text, row, "id")
    inner(row, "extra")
    asked = inner(row, "asked") if "asked" in row else {}
    for key, kind in _ASKED.items():
        absent_or(kind, asked, key)
    if whole(row, "index") != index:
        raise ValueError(f"index must be {index}, found {row['index']}")
    unknown = [key for key in row if key not in _KEYS]
    if unknown:
        raise ValueError(f"unknown key {printable(unknown[0])!r}; known keys: {', '.join(_KEYS)}")
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("not valid text: half of a surrogate pair") from error


def _row(prompt: Prompt) -> dict[str, Any]:
    return {
        "index": prompt.index,
        "id": prompt.id,
        "prompt": prompt.text,
        "digest": prompt.digest,
        "extra": dict(prompt.extra),
        **({"asked": dict(prompt.asked)} if prompt.asked else {}),
    }


def _changed(old: JsonRow, new: JsonRow) -> FolderError:
    key = next(key for key in {**old, **new} if old.get(key) != new.get(key))
    was, now = (printable(repr(row.get(key)))[:200] for row in (old, new))
    return FolderError(
        f"row {new['index']} of the prompts has changed since this folder was made: "
        f"{key} was {was}, is {now}",
        "rows may be appended; to change one and generate its images again, give "
        f"--update-prompts {new['index']}",
    )
