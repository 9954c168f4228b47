"""Prompts longer than the model reads: told once a row, the first few by number, all of them as a count at the end."""

from collections.abc import Mapping
from typing import Any

from sjdvp.events import Listener, Note

_MOST = 5  # rows named


class LongPrompts:
    """Hears the log rows of a run and warns of truncated prompts."""

    def __init__(self, listen: Listener) -> None:
        self._listen = listen
        self._rows: set[int] = set()

    def hear(self, row: Mapping[str, Any]) -> None:
        """Take one image into account."""
        index = row["index"]
        if not row["truncated"] or index in self._rows:
            return
        self._rows.add(index)
        if len(self._rows) <= _MOST:
            self._warn(f"prompt row {index} is longer than the text limit: truncated")
        elif len(self._rows) == _MOST + 1:
            self._warn("further prompts that are truncated are counted, not listed")

    def close(self) -> None:
        """Tell how many there were, where not all were named."""
        if len(self._rows) > _MOST:
            self._warn(f"{len(self._rows)} prompts are longer than the text limit: truncated")

    def _warn(self, message: str) -> None:
        self._listen(Note("warning", message))
