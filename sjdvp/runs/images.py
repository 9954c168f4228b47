"""Pictures on disk: PNG with the settings inside, written whole or not at all."""

from pathlib import Path
from typing import Any


def read_metadata(path: Path) -> dict[str, Any]:
    """Return what `sjdvp` stored in a picture: {"parameters": text, "sjdvp": row}; empty without metadata.

    Raises FolderError when `path` is not a readable picture.
    """
    raise NotImplementedError
