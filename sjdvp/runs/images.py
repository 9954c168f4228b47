"""Images as files: PNG with the settings inside, and the way back from a image to its settings."""

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from sjdvp.errors import FolderError
from sjdvp.runs.strict_json import load_json


def encode_png(image_HWC: np.ndarray[Any, Any], texts: Mapping[str, str]) -> bytes:
    """Return the PNG of an RGB uint8 array, with one iTXt chunk a text. Equal pixels and texts give equal bytes."""
    info = PngImagePlugin.PngInfo()
    for key, text in texts.items():
        info.add_itxt(key, text)
    buffer = io.BytesIO()
    Image.fromarray(image_HWC, "RGB").save(buffer, format="PNG", pnginfo=info)
    return buffer.getvalue()


def metadata(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts that a image carries: `parameters` as existing viewers parse it, and `sjdvp` with the settings as JSON.

    Only what the image itself depends on: no host, process, path or time, so that drawing it again gives the same bytes.
    """
    settings = {key: row[key] for key in _PORTABLE} | {"model": _model_name(row["model"])}
    return {
        "parameters": _parameters(settings),
        "sjdvp": json.dumps(settings, ensure_ascii=False, allow_nan=False),
    }


def read_metadata(path: Path) -> dict[str, Any]:
    """Return what `sjdvp` stored in a image: {"parameters": text, "sjdvp": settings}; empty without metadata.

    Raises FolderError when `path` is not a readable image, or when what it holds as settings are none.
    """
    try:
        with Image.open(path) as image:
            info = dict(image.info)
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ) as error:  # SyntaxError: Pillow, for a broken chunk
        raise FolderError(f"{path.name} is not a image that can be read: {error}") from error
    found: dict[str, Any] = {"parameters": str(info["parameters"])} if "parameters" in info else {}
    return found | ({"sjdvp": _settings(path, info["sjdvp"])} if "sjdvp" in info else {})


def _settings(path: Path, text: str | bytes) -> dict[str, Any]:
    try:
        settings = load_json(text)
    except ValueError as error:
        raise FolderError(
            f"{path.name} holds settings that cannot be read: {error}", _NOT_OURS
        ) from error
    if not isinstance(settings, dict):
        raise FolderError(f"{path.name} holds settings that are no object of JSON", _NOT_OURS)
    return settings


_NOT_OURS = "another program has changed the image; the log of its run folder has them too"
_PORTABLE = (
    *(
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
    ),
    *("model", "revision", "profile", "decoder", "lossless", "params", "seed", "dtype", "sjdvp"),
)


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
        "Version": f"sjdvp {settings['sjdvp']}",
    }
    return settings["prompt"] + "\n" + ", ".join(f"{key}: {value}" for key, value in fields.items())


def _model_name(model: str) -> str:
    is_path = model.startswith(("/", ".", "~")) or model.count("/") > 1
    return Path(model).name if is_path else model
