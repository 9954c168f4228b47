"""From a image to its file and then its log row, in this order: a row means that the file is whole and on disk."""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from sjdvp.jobs import ImageResult
from sjdvp.runs.atomic import write_atomic
from sjdvp.runs.images import encode_png, metadata
from sjdvp.runs.jsonl import Appender, Row
from sjdvp.runs.layout import image_file
from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.row import RowMaker


@dataclass(frozen=True, slots=True)
class Saver:
    """Saves the images of one shard."""

    root: Path
    log: Appender
    rows: RowMaker
    images_per_prompt: int
    with_metadata: bool

    def save(self, prompt: Prompt, image: ImageResult, attempt: int) -> Row:
        """Write the image (if it has not failed) and then its row, and return the row; raises StorageError."""
        row = self.rows.begin(prompt, image, attempt)
        if image.image_HWC is not None:
            start = time.perf_counter()
            file = image_file(prompt.index, image.job.sample, self.images_per_prompt)
            data = encode_png(image.image_HWC, metadata(row) if self.with_metadata else {})
            write_atomic(self.root / file, data, owner=self.rows.shard.label)
            row |= {
                "file": file,
                "bytes": len(data),
                "image_sha256": hashlib.sha256(data).hexdigest(),
            }
            row["save_s"] = time.perf_counter() - start
        self.log.append([row])
        return row
