"""Image tokens beside the images: one JSON row per image, one append-only file per shard.

A row holds the tokens as little-endian integers of its `dtype`, in base64. `--save-tokens` keeps
those of every image; an image whose pixels are missing always has its own. The tokens of an image
are those with the digest in its log row.
"""

import base64
import binascii
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sjdvp.errors import FolderError
from sjdvp.jobs import token_digest
from sjdvp.runs.atomic import Closing
from sjdvp.runs.jsonl import Appender, numbered_rows, text, whole, word
from sjdvp.runs.log import ImageKey, LogEntry
from sjdvp.runs.sharding import Shard

_LETTERS = {"uint16": "H", "uint32": "I"}  # of the module struct

TokensKey = tuple[ImageKey, str]  # image and digest of its tokens


@dataclass(frozen=True, slots=True)
class SavedTokens:
    """The image tokens of one image as they are stored."""

    key: ImageKey
    token_sha256: str
    dtype: str
    data: str  # base64
    where: str  # file and line, for messages

    def decode(self) -> tuple[int, ...]:
        """Return the tokens in raster order; raises FolderError when they lack the digest."""
        try:
            data = base64.b64decode(self.data, validate=True)
            tokens = tuple(n for (n,) in struct.iter_unpack(f"<{_LETTERS[self.dtype]}", data))
        except (binascii.Error, struct.error, ValueError):
            tokens = ()
        if token_digest(tokens) != self.token_sha256:
            raise FolderError(
                f"{self.where}: the image tokens are damaged",
                "delete the line; the command of the run makes them again",
            )
        return tokens


class TokensFile(Closing):
    """The tokens file of a shard, made when the first tokens come; its lock must be held."""

    def __init__(self, root: Path, shard: Shard) -> None:
        self._root = root
        self._path = root / f"tokens.shard-{shard.label}.jsonl"
        self._file: Appender | None = None
        self._known: set[TokensKey] = set()

    def append(self, key: ImageKey, tokens: Sequence[int], token_sha256: str) -> None:
        """Append the tokens of an image, unless they are there; raises StorageError."""
        if self._file is None:
            self._file = Appender(self._path)
            self._known = saved_keys(self._root)
        if (key, token_sha256) in self._known:  # of an image that is generated again
            return
        dtype = "uint16" if max(tokens, default=0) < 2**16 else "uint32"
        data = struct.pack(f"<{len(tokens)}{_LETTERS[dtype]}", *tokens)
        row = {"index": key[0], "sample": key[1], "token_sha256": token_sha256, "dtype": dtype}
        self._file.append([{**row, "tokens": base64.b64encode(data).decode("ascii")}])
        self._known.add((key, token_sha256))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def tokens_files(root: Path) -> list[Path]:
    """Return every tokens file in a run folder, whatever shard counts it was generated with."""
    return sorted(root.glob("tokens.shard-*-of-*.jsonl"))


def saved_keys(root: Path) -> set[TokensKey]:
    """Return whose tokens are in a run folder; raises FolderError."""
    return {(saved.key, saved.token_sha256) for saved in saved_tokens(root)}


def finished_as_tokens(root: Path, entries: Mapping[ImageKey, LogEntry]) -> set[ImageKey]:
    """Return the images whose row promises no file and whose tokens are saved; FolderError."""
    promised = {(key, e.token_sha256) for key, e in entries.items() if e.status == "tokens"}
    return {key for key, _ in promised & saved_keys(root)} if promised else set()


def saved_tokens(root: Path) -> Iterator[SavedTokens]:
    """Yield all tokens in a run folder, not decoded yet; raises FolderError."""
    return (saved for path in tokens_files(root) for saved in read_tokens(path))


def read_tokens(path: Path) -> Iterator[SavedTokens]:
    """Yield the rows of a tokens file; raises FolderError for one that is not of this form."""
    for line, row in numbered_rows(path):
        where = f"{path.name}: line {line}"
        try:
            yield SavedTokens(
                key=(whole(row, "index"), whole(row, "sample")),
                token_sha256=text(row, "token_sha256"),
                dtype=word(row, "dtype", tuple(_LETTERS)),
                data=text(row, "tokens"),
                where=where,
            )
        except ValueError as error:
            raise FolderError(f"{where}: {error}", "delete the line") from error
