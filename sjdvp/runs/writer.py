"""Saves an image: its tokens, its file, then its log row, so that a row means a file on disk."""

import hashlib
import io
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

import numpy as np
from PIL import Image, PngImagePlugin

from sjdvp.config import ImageFormat, ModelConfig
from sjdvp.errors import FolderError
from sjdvp.jobs import ImageResult, Job
from sjdvp.runs.atomic import Closing, storage_errors, write_atomic
from sjdvp.runs.job_queue import Task
from sjdvp.runs.jsonl import Appender, JsonRow, load_json
from sjdvp.runs.log import RowMaker
from sjdvp.runs.sharding import image_file
from sjdvp.runs.tokens import TokensFile

Item = TypeVar("Item")

# What the image itself depends on. No host, process, path or time: generating it again gives the
# same bytes.
_PORTABLE = tuple(
    [
        "schema",
        "index",
        "id",
        "sample",
        "prompt",
        "prompt_sha256",
        "width",
        "height",
        "token_sha256",
        "image_tokens",
        "model",
        "revision",
        "profile",
        "decoder",
        "lossless",
        "params",
        "seed",
        "dtype",
        "sjdvp",
    ]
)
_PATHS = ("path", "tokenizer", "vq_decoder", "text_encoder")
_DESCRIPTION, _EXIF_IFD, _USER_COMMENT = 0x010E, 0x8769, 0x9286  # EXIF tags
_LONGEST_EXIF = 65_000  # bytes, of a JPEG segment
_NOT_OURS = "another program has changed the image; the log of its run folder has the settings too"


@dataclass(frozen=True, slots=True)
class ImageWriter:
    """Writes the images and log rows of one shard."""

    root: Path
    log: Appender
    tokens: TokensFile
    rows: RowMaker
    images_per_prompt: int
    with_metadata: bool
    check_lock: Callable[[], None]
    tell: Callable[[str], None]

    def save(self, task: Task, image: ImageResult) -> JsonRow:
        """Write the image, unless it failed, then its log row; return the row.

        Its tokens are written before, when they are to be saved or the pixels failed. Raises
        StorageError, also when this process has lost the lock of its shard.
        """
        self.check_lock()
        prompt = task.prompt
        row = self.rows.begin(prompt, image, task.attempt, task.reroll, task.earlier)
        if image.tokens and (image.image_HWC is None or self.rows.config.run.save_tokens):
            self.tokens.append((prompt.index, image.job.sample), image.tokens, row["token_sha256"])
        if image.image_HWC is not None:
            start = time.perf_counter()
            copies = prompt.copies(self.images_per_prompt)
            run = self.rows.config.run
            file = image_file(prompt.index, image.job.sample, copies, run.image_format)
            texts = self._texts(row, file, image.job)
            data = encode_image(image.image_HWC, texts, run.image_format, run.image_quality)
            write_atomic(self.root / file, data, owner=self.rows.shard.label)
            row |= {
                "file": file,
                "bytes": len(data),
                "image_sha256": hashlib.sha256(data).hexdigest(),
            }
            row["save_s"] = time.perf_counter() - start
        self.log.append([row])
        if image.image_HWC is not None:
            self._remove_other_formats(self.root / row["file"])
        return row

    def _texts(self, row: JsonRow, file: str, job: Job) -> dict[str, str]:
        """Return the texts to store in the image file."""
        texts = metadata(row, self._model(job)) if self.with_metadata else {}
        if fits(texts, self.rows.config.run.image_format):
            return texts
        self.tell(f"{file} is without its settings: JPEG holds 64 kB; they are in its log row")
        return {}

    def _model(self, job: Job) -> ModelConfig:
        """Return the settings of the model that an image was generated with."""
        model = self.rows.config.model
        return replace(model, width=job.size[0], height=job.size[1]) if job.size else model

    def _remove_other_formats(self, file: Path) -> None:
        """Remove an earlier image of the same number in another format."""
        with storage_errors(file.name):
            for image_format in get_args(ImageFormat):
                other = file.with_suffix(f".{image_format}")
                if other != file:
                    other.unlink(missing_ok=True)


class Background(Closing, Generic[Item]):
    """A thread that calls `act` for each item in turn, so that saving overlaps with decoding.

    After the first exception it does nothing more, and the exception is raised in the caller's
    thread.
    """

    def __init__(self, act: Callable[[Item], None], capacity: int = 16) -> None:
        self._act = act
        self._items: queue.Queue[Item | None] = queue.Queue(capacity)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="sjdvp-save", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Hand an item over, waiting while the queue is full; raises what `act` raised before."""
        self.check()
        self._items.put(item)

    def check(self) -> None:
        """Raise what an earlier item raised, if anything."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Wait until every item is done; raises what one of them raised."""
        self._items.put(None)
        self._thread.join()
        self.check()

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            if self._failure is None:
                try:
                    self._act(item)
                except BaseException as error:  # noqa: BLE001 (raised in the caller's thread)
                    self._failure = error


def encode_image(
    image_HWC: np.ndarray[Any, Any],
    texts: Mapping[str, str],
    image_format: ImageFormat,
    quality: int,
) -> bytes:
    """Return the file of an RGB image (uint8) with the texts of `metadata`.

    PNG has them as iTXt chunks. JPEG and WebP have them as EXIF: `parameters` as UserComment, where
    image viewers look for it, and `sjdvp` as ImageDescription. Equal arguments give equal bytes.
    Raises ValueError for texts that do not fit.
    """
    if image_format == "png":
        return encode_png(image_HWC, texts)
    exif = _exif(texts) if texts else b""
    options: dict[str, Any] = {"quality": quality}
    if image_format == "jpg":
        options |= {"subsampling": 0}
    buffer = io.BytesIO()
    kind = "JPEG" if image_format == "jpg" else "WEBP"
    Image.fromarray(image_HWC, "RGB").save(buffer, format=kind, exif=exif, **options)
    return buffer.getvalue()


def fits(texts: Mapping[str, str], image_format: ImageFormat) -> bool:
    """Return whether a file of this format holds the texts: EXIF of JPEG ends at 64 kB."""
    return image_format != "jpg" or not texts or len(_exif(texts)) < _LONGEST_EXIF


def _exif(texts: Mapping[str, str]) -> bytes:
    exif = Image.Exif()
    exif[_DESCRIPTION] = json.dumps(json.loads(texts["sjdvp"]))  # EXIF texts are ASCII
    comment = b"UNICODE\0" + texts["parameters"].encode("utf-16-be", "replace")
    exif.get_ifd(_EXIF_IFD)[_USER_COMMENT] = comment
    return exif.tobytes()


def encode_png(image_HWC: np.ndarray[Any, Any], texts: Mapping[str, str]) -> bytes:
    """Return the PNG of an RGB image (uint8), with one iTXt chunk for each text.

    Equal pixels and texts give equal bytes.
    """
    info = PngImagePlugin.PngInfo()
    for key, text in texts.items():
        info.add_itxt(key, text)
    buffer = io.BytesIO()
    Image.fromarray(image_HWC, "RGB").save(buffer, format="PNG", pnginfo=info)
    return buffer.getvalue()


def metadata(row: Mapping[str, Any], model: ModelConfig) -> dict[str, str]:
    """Return the texts stored in an image.

    `parameters` is in the form that image viewers parse, `sjdvp` has the settings as JSON.
    """
    settings = {key: row[key] for key in _PORTABLE} | {
        "model": _model_name(row["model"]),
        "model_settings": _changed(model),
    }
    return {
        "parameters": _parameters(settings),
        "sjdvp": json.dumps(settings, ensure_ascii=False, allow_nan=False),
    }


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the texts that `metadata` made, the second one parsed; {} for an image without them.

    Raises FolderError when `path` is not a readable image or its settings are not a JSON object.
    """
    try:
        with Image.open(path) as image:
            info = dict(image.info)
            exif = image.getexif()
            if image.format in ("JPEG", "WEBP") and _DESCRIPTION in exif:
                comment = exif.get_ifd(_EXIF_IFD).get(_USER_COMMENT, b"")
                info["parameters"] = comment[8:].decode("utf-16-be", "replace")
                info["sjdvp"] = exif[_DESCRIPTION]
    except FileNotFoundError as error:
        raise FolderError(f"{path}: no such file") from error
    # SyntaxError is what Pillow raises for a broken chunk
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise FolderError(f"{path.name} is not a readable image: {error}") from error
    found: dict[str, Any] = {"parameters": str(info["parameters"])} if "parameters" in info else {}
    return found | ({"sjdvp": _settings(path, info["sjdvp"])} if "sjdvp" in info else {})


def _settings(path: Path, text: str | bytes) -> dict[str, Any]:
    try:
        settings = load_json(text)
    except ValueError as error:
        raise FolderError(f"cannot read the settings in {path.name}: {error}", _NOT_OURS) from error
    if not isinstance(settings, dict):
        raise FolderError(f"the settings in {path.name} are not a JSON object", _NOT_OURS)
    return settings


def _parameters(settings: Mapping[str, Any]) -> str:
    params = settings["params"]
    fields = {
        "Steps": settings["image_tokens"] or 0,
        "Sampler": settings["decoder"],
        "CFG scale": params["cfg_scale"],
        "Seed": settings["seed"],
        "Size": f"{settings['width']}x{settings['height']}",
        "Model": re.sub(r'[,:"\n]', " ", settings["model"]),
        "Temperature": params["temperature"],
        "Top-k": params["top_k"],
        "Top-p": params["top_p"],
        "Min-p": params["min_p"],
        "Version": f"sjdvp {settings['sjdvp']}",
    }
    negative = params["negative_prompt"]
    prompt = settings["prompt"] + ("" if negative is None else f"\nNegative prompt: {negative}")
    return prompt + "\n" + ", ".join(f"{key}: {value}" for key, value in fields.items())


def _changed(model: ModelConfig) -> dict[str, Any]:
    """Return the settings of the model that are not defaults; files by their names."""
    plain, defaults = asdict(model), asdict(ModelConfig())
    changed = {key: value for key, value in plain.items() if value != defaults[key]}
    changed = {key: value for key, value in changed.items() if key not in ("licence", "dtype")}
    return {
        key: _model_name(value) if key in _PATHS and isinstance(value, str) else value
        for key, value in changed.items()
    }


def _model_name(model: str) -> str:
    # owner/name/path is a file of a repository of the hub
    is_path = model.startswith(("/", ".", "~")) or (model.count("/") > 1 and Path(model).exists())
    return Path(model).name if is_path else model
