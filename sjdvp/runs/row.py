"""The log row: the same keys in the same order for every image, finished or failed; units in the keys, finite numbers only."""

import dataclasses
import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sjdvp import __version__
from sjdvp.config import RunConfig
from sjdvp.jobs import ImageResult
from sjdvp.runs.jsonl import Row
from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.sharding import Shard

SCHEMA = "sjdvp.image/1"
KEYS = (
    *(
        "schema",
        "index",
        "id",
        "sample",
        "status",
        "prompt",
        "prompt_sha256",
        "prompt_tokens",
        "truncated",
    ),
    *("file", "width", "height", "bytes", "image_sha256", "token_sha256"),
    *("model", "revision", "profile", "decoder", "lossless", "params", "seed"),
    *(
        "nfe",
        "image_tokens",
        "tokens_per_nfe",
        "drafted",
        "accepted",
        "accept_rate",
        "accept_hist",
        "accept_map",
        "prediction",
    ),
    *(
        "latency_s",
        "prefill_s",
        "decode_s",
        "pixels_s",
        "save_s",
        "batch_size",
        "warmup",
        "dtype",
        "device",
        "gpu",
        "peak_mem_bytes",
    ),
    *("attempt", "error", "rank", "shard", "host", "pid", "started_at", "sjdvp"),
)


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Builds the rows of one process."""

    config: RunConfig
    shard: Shard
    rank: int = 0

    def begin(self, prompt: Prompt, image: ImageResult, attempt: int) -> Row:
        """Return the row of a image that is not on disk yet: file, bytes, image_sha256 and save_s are still null."""
        height, width = (None, None) if image.image_HWC is None else image.image_HWC.shape[:2]
        row: Row = dict.fromkeys(KEYS)
        row |= {"accept_hist": [], "truncated": False, "warmup": False, "model": self._model()}
        row |= {key: value for key, value in image.stats.items() if value is not None}
        row |= self._process() | {
            "index": prompt.index,
            "id": prompt.id,
            "sample": image.job.sample,
            "status": "failed" if image.image_HWC is None else "ok",
            "prompt": prompt.text,
            "prompt_sha256": prompt.digest,
            "width": width,
            "height": height,
            "seed": image.job.seed,
            "attempt": attempt,
            "error": image.error,
            "started_at": _started_at(image.stats),
        }
        return {key: _finite(value) for key, value in row.items()}

    def _process(self) -> Row:
        config = self.config
        return {
            "schema": SCHEMA,
            "profile": config.profile,
            "decoder": config.decoder.preset,
            "lossless": config.decoder.lossless,
            "params": dataclasses.asdict(config.sampling) | dataclasses.asdict(config.decoder),
            "rank": self.rank,
            "shard": str(self.shard),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "sjdvp": __version__,
        }

    def _model(self) -> str:
        return self.config.model.path or self.config.model.backbone


def _started_at(stats: Mapping[str, Any]) -> str:
    latency = _finite(stats.get("latency_s")) or 0.0
    return (
        (datetime.now(UTC) - timedelta(seconds=latency))
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
