"""The log: one JSON row per image, append only, one file per shard.

Units are in the keys, numbers are finite, and rows of finished and failed images have the same
keys. An image is done when its log row and its file agree; nothing is concluded from counts.
"""

import dataclasses
import hashlib
import math
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast, get_args

from sjdvp import __version__
from sjdvp.config import RunConfig
from sjdvp.errors import FolderError
from sjdvp.jobs import ImageResult, Job, Status
from sjdvp.runs.jsonl import JsonRow, absent_or, inner, numbered_rows, optional, text, whole, word
from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.sharding import IMAGES, Seeds, Shard, log_paths
from sjdvp.text import printable

SCHEMA = "sjdvp.image/1"
KEYS = tuple(
    [
        "schema",
        "index",
        "id",
        "sample",
        "status",
        "prompt",
        "prompt_sha256",
        "asked",
        "prompt_tokens",
        "truncated",
        "file",
        "width",
        "height",
        "bytes",
        "image_sha256",
        "token_sha256",
        "model",
        "revision",
        "profile",
        "decoder",
        "lossless",
        "params",
        "seed",
        "nfe",
        "image_tokens",
        "tokens_per_nfe",
        "drafted",
        "accepted",
        "accept_rate",
        "accept_hist",
        "accept_map",
        "latency_s",
        "prefill_s",
        "decode_s",
        "pixels_s",
        "save_s",
        "batch_size",
        "warmup",
        "dtype",
        "quantize",
        "device",
        "gpu",
        "peak_mem_bytes",
        "attempt",
        "reroll",
        "error",
        "rank",
        "shard",
        "host",
        "pid",
        "started_at",
        "sjdvp",
    ]
)

_IMAGE_NAME = re.compile(rf"{IMAGES}/[0-9_]+\.(?:png|jpg|webp)")

OUTDATED = "generated from an earlier text or seed of its prompt"

ImageKey = tuple[int, int]  # (prompt row, sample)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """The part of a log row that decides what is done; of several rows the last attempt counts."""

    key: ImageKey
    status: Status
    attempt: int
    reroll: int  # how often a new seed was asked for
    seed: int | None
    prompt_sha256: str | None
    asked: dict[str, Any] | None  # what its row asked for that shapes pixels; None: not known
    started_at: str
    file: str | None  # relative to the run folder, with "/"
    bytes: int | None
    sha256: str | None
    token_sha256: str | None
    error: dict[str, Any] | None

    @property
    def ok(self) -> bool:
        """Whether there is an image file."""
        return self.status == "ok"

    @property
    def order(self) -> tuple[int, str]:
        """Sort key of the attempts at one image: the largest is the last."""
        return self.attempt, self.started_at

    def is_of(self, prompt: Prompt, seeds: Seeds) -> bool:
        """Return whether the image was generated from the present row of the prompt, and seed."""
        seed = seeds.of(prompt, self.key[1], self.reroll)
        same_text = self.prompt_sha256 in (None, prompt.digest) and self.seed in (None, seed)
        return same_text and self.asked in (None, pixel_wishes(prompt))

    @classmethod
    def of(cls, row: JsonRow, where: str) -> "LogEntry":
        """Read a log row; raises FolderError, which names the place `where`, for anything else."""
        try:
            text(row, "prompt")  # reports show it
            return cls(
                key=(whole(row, "index"), whole(row, "sample")),
                status=cast("Status", word(row, "status", get_args(Status))),
                attempt=whole(row, "attempt"),
                reroll=absent_or(whole, row, "reroll") or 0,
                seed=absent_or(whole, row, "seed"),
                prompt_sha256=absent_or(text, row, "prompt_sha256"),
                asked=absent_or(inner, row, "asked"),
                started_at=text(row, "started_at"),
                file=optional(_image_name, row, "file"),
                bytes=optional(whole, row, "bytes"),
                sha256=optional(text, row, "image_sha256"),
                token_sha256=absent_or(text, row, "token_sha256"),
                error=optional(inner, row, "error"),
            )
        except ValueError as error:
            raise FolderError(
                f"{where}: {error}", "restore the line, or delete it: its image is generated again"
            ) from error


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes the log rows of one process."""

    config: RunConfig
    shard: Shard
    rank: int = 0

    def begin(
        self,
        prompt: Prompt,
        image: ImageResult,
        attempt: int,
        reroll: int = 0,
        earlier: JsonRow | None = None,
    ) -> JsonRow:
        """Return the row of an image that is not on disk yet.

        file, bytes, image_sha256 and save_s are still null. `earlier` is the row of the attempt
        that made the tokens, when this one made only the pixels: how they were decoded is told
        there.
        """
        height, width = (None, None) if image.image_HWC is None else image.image_HWC.shape[:2]
        row: JsonRow = dict.fromkeys(KEYS)
        row |= {"accept_hist": [], "truncated": False, "warmup": False}
        row["model"] = self.config.model.path or self.config.model.backbone
        stats = image.stats
        if earlier is not None:
            stats = earlier | {"pixels_s": image.stats.get("pixels_s")}
        row |= {key: value for key, value in stats.items() if key in row and value is not None}
        row |= self._process() | {
            "index": prompt.index,
            "id": prompt.id,
            "sample": image.job.sample,
            "status": image.status,
            "prompt": prompt.text,
            "prompt_sha256": prompt.digest,
            "asked": pixel_wishes(prompt),
            "params": self._params(image.job),
            "width": width,
            "height": height,
            "seed": image.job.seed,
            "attempt": attempt,
            "reroll": reroll,
            "error": image.error,
            "started_at": _started_at(image.stats),
        }
        return {key: _finite(value) for key, value in row.items()}

    def _params(self, job: Job) -> JsonRow:
        """Return the settings of sampling and decoder that an image was generated with."""
        own = {"cfg_scale": job.cfg_scale, "negative_prompt": job.negative_prompt}
        return (
            dataclasses.asdict(self.config.sampling)
            | {key: value for key, value in own.items() if value is not None}
            | dataclasses.asdict(self.config.decoder)
        )

    def _process(self) -> JsonRow:
        config = self.config
        return {
            "schema": SCHEMA,
            "profile": config.profile,
            "decoder": config.decoder.preset,
            "lossless": config.decoder.lossless,
            "rank": self.rank,
            "shard": str(self.shard),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "sjdvp": __version__,
        }


def pixel_wishes(prompt: Prompt) -> dict[str, Any]:
    """Return what a row asks for that shapes the pixels of its images."""
    return {key: value for key, value in prompt.asked.items() if key not in ("n", "filename")}


def read_log(root: Path) -> dict[ImageKey, LogEntry]:
    """Return the last entry of every image in any log of the folder; raises FolderError."""
    entries: dict[ImageKey, LogEntry] = {}
    for entry, _ in log_rows(root):
        if entry.key not in entries or entries[entry.key].order <= entry.order:
            entries[entry.key] = entry
    return entries


def log_rows(root: Path) -> Iterator[tuple[LogEntry, JsonRow]]:
    """Yield every row of every log of the folder with its entry; raises FolderError."""
    for path in log_paths(root):
        for line, row in numbered_rows(path):
            yield LogEntry.of(row, f"{path.name}: line {line}"), row


def has_image(root: Path, entry: LogEntry) -> bool:
    """Return whether the file of an entry has the SHA-256 in it; raises FolderError."""
    try:
        data = (root / (entry.file or "")).read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return False
    except OSError as error:
        raise FolderError(f"cannot read {entry.file}: {error.strerror}") from error
    return hashlib.sha256(data).hexdigest() == entry.sha256


def finished(root: Path, entries: Mapping[ImageKey, LogEntry]) -> set[ImageKey]:
    """Return the images with an ok row and a file of the size in that row."""
    sizes = image_sizes(root)
    return {
        key
        for key, e in entries.items()
        if e.ok and e.file is not None and sizes.get(Path(e.file).name) == e.bytes
    }


def image_sizes(root: Path) -> dict[str, int]:
    """Return the size of every image file by name; raises FolderError."""
    try:
        with os.scandir(root / IMAGES) as found:
            return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise FolderError(
            f"cannot read {root / IMAGES}: {error.strerror}", "run as a user who may read it"
        ) from error


def _image_name(row: object, key: str) -> str:
    file = text(row, key)
    if not _IMAGE_NAME.fullmatch(file):
        raise ValueError(f"{key} is {printable(file)!r}, which is not an image of this folder")
    return file


def _started_at(stats: Mapping[str, Any]) -> str:
    latency_s = _finite(stats.get("latency_s")) or 0.0
    started = datetime.now(UTC) - timedelta(seconds=latency_s)
    return started.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
