"""Quality of the images of finished runs: CLIP score and Fréchet distance. Needs the extra `eval`.

The log pairs images with prompts. The measures are those of torchmetrics, and weights come from
local paths only.
"""

import importlib
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

from sjdvp.errors import ConfigError, FolderError, WeightsError
from sjdvp.report.load import Run, load_runs
from sjdvp.runs.log import image_sizes
from sjdvp.runs.sharding import RUN
from sjdvp.text import counted

BATCH = 16
_INSTALL = "in the checkout of sjdvp: pip install '.[eval]'"
# What bytes that are not a pickle raise when they are read as one.
_UNPICKLING = (
    *(pickle.PickleError, RuntimeError, EOFError, OSError, ValueError, TypeError, AttributeError),
    *(LookupError, ArithmeticError, AssertionError),
)
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp"})


@dataclass(frozen=True, slots=True)
class Pair:
    """One image and its prompt."""

    image: Path
    prompt: str


class Clip(nn.Module):
    """A CLIP model for torchmetrics: features are tensors, long captions keep their end mark."""

    def __init__(self, model: Any, tokenizer: Any, image_processor: Any) -> None:
        super().__init__()
        self.model, self.tokenizer, self.image_processor = model, tokenizer, image_processor
        self.config = model.config
        self.num_features = int(model.config.projection_dim)

    def process(
        self, text: list[str] | None = None, images: list[Tensor] | None = None, **_: object
    ) -> Any:
        """Return the model's inputs for captions or for images."""
        if text is not None:
            longest = self.config.text_config.max_position_embeddings
            return self.tokenizer(
                text, padding=True, truncation=True, max_length=longest, return_tensors="pt"
            )
        return self.image_processor(
            images=[image.cpu() for image in images or ()], return_tensors="pt"
        )

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        """Return one vector per image."""
        return self.model.get_image_features(pixel_values=pixel_values).pooler_output

    def get_text_features(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return one vector per caption."""
        return self.model.get_text_features(input_ids=ids, attention_mask=mask).pooler_output

    def forward(self, images: Tensor) -> Tensor:
        """Return the vectors of uint8 images [N, 3, H, W]."""
        return self.get_image_features(
            self.process(images=list(images))["pixel_values"].to(images.device)
        )


@dataclass(frozen=True, slots=True)
class Quality:
    """What was measured of one run; None for what was not asked."""

    run: str
    lossless: bool
    quantize: str | None  # format of the weights, which `lossless` refers to
    images: int
    clip_score: float | None
    fid_clip: float | None  # Fréchet distance between CLIP features
    fid: float | None


def measure(
    folders: Sequence[Path],
    *,
    clip: Path | None,
    reference: Path | None,
    inception: Path | None,
    device: torch.device,
) -> list[Quality]:
    """Measure every run in `folders` with the weights that are given."""
    images_by_run = [(run, pairs(run)) for run in load_runs(folders)]
    others = references(reference) if reference else []
    encoder = open_clip(clip, device) if clip else None
    found = []
    for run, images in images_by_run:
        files = [pair.image for pair in images]
        found.append(
            Quality(
                run=run.name,
                lossless=run.lossless,
                quantize=run.quantize,
                images=len(images),
                clip_score=clip_score(images, encoder, device) if encoder else None,
                fid_clip=clip_distance(files, others, encoder, device)
                if encoder and others
                else None,
                fid=inception_distance(files, others, inception, device)
                if inception and others
                else None,
            )
        )
    return found


def pairs(run: Run) -> list[Pair]:
    """Return the images of a run with their prompts; raises FolderError when one is missing."""
    found = [Pair(run.root / row["file"], row["prompt"]) for row in run.ok.values() if row["file"]]
    if not found:
        raise FolderError(f"{run.root} has no finished image")
    there = image_sizes(run.root)
    gone = next((pair.image for pair in found if pair.image.name not in there), None)
    if gone:
        raise FolderError(
            f"{gone} is missing, though the log has it",
            "see sjdvp check; the same generate command makes it again",
        )
    return found


def references(folder: Path) -> list[Path]:
    """Return the reference images: all below a folder, or those of a run folder."""
    if (folder / RUN).is_file():
        return [pair.image for run in load_runs([folder]) for pair in pairs(run)]
    found = (
        sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
        if folder.is_dir()
        else []
    )
    if len(found) < 2:
        raise FolderError(
            f"{folder} holds {counted(len(found), 'image')} ({', '.join(sorted(_SUFFIXES))})",
            "a Fréchet distance needs many images",
        )
    return found


def open_clip(folder: Path, device: torch.device) -> Clip:
    """Load a CLIP model that lies in a local folder; raises WeightsError."""
    if not folder.is_dir():
        raise WeightsError(
            f"{folder}: no such folder of CLIP weights",
            "download for example openai/clip-vit-large-patch14 there",
        )
    try:
        model = CLIPModel.from_pretrained(folder, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        images = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise WeightsError(
            f"{folder}: no CLIP model that can be read: {error}",
            "it must be a folder of transformers",
        ) from error
    return Clip(model, tokenizer, images).eval().to(device)


def clip_score(found: Sequence[Pair], clip: Clip, device: torch.device) -> float:
    """Return the mean of 100 times the cosine of image and prompt."""
    metric = _torchmetrics("multimodal.clip_score", "CLIPScore")(
        model_name_or_path=lambda: (clip, clip.process)
    ).to(device)
    with torch.inference_mode():
        for batch in _batches(found, BATCH):
            metric.update(
                [_pixels(pair.image).to(device) for pair in batch], [pair.prompt for pair in batch]
            )
        return float(metric.compute())


def clip_distance(
    images: Iterable[Path], reference: Iterable[Path], clip: Clip, device: torch.device
) -> float:
    """Return the Fréchet distance in the space of CLIP's image features (arXiv 2203.06026)."""
    return _distance(
        _torchmetrics("image.fid", "FrechetInceptionDistance")(feature=clip),
        images,
        reference,
        device,
    )


def inception_distance(
    images: Iterable[Path], reference: Iterable[Path], weights: Path, device: torch.device
) -> float:
    """Return the FID; `weights` are weights-inception-2015-12-05-6726825d.pth of torch-fidelity."""
    if not weights.is_file():
        raise WeightsError(
            f"{weights}: no such file of Inception weights",
            "it is weights-inception-2015-12-05-6726825d.pth",
        )
    metric = _torchmetrics("image.fid", "FrechetInceptionDistance")
    try:
        _require_tensors(weights)
        made = metric(feature=2048, feature_extractor_weights_path=str(weights))
    except ModuleNotFoundError as error:
        raise ConfigError("the package torch-fidelity is not installed", _INSTALL) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise _no_inception(weights, error) from error
    return _distance(made, images, reference, device)


def _require_tensors(weights: Path) -> None:
    """Refuse a file that holds more than tensors, since torch-fidelity unpickles anything."""
    try:
        torch.load(weights, weights_only=True, map_location="cpu")
    except _UNPICKLING as error:
        raise _no_inception(weights, error) from error


def _no_inception(weights: Path, error: Exception) -> WeightsError:
    reason = str(error).partition("\n")[0]
    return WeightsError(
        f"{weights}: not the Inception weights of torch-fidelity: {reason or type(error).__name__}"
    )


def _distance(
    metric: Any, images: Iterable[Path], reference: Iterable[Path], device: torch.device
) -> float:
    metric = metric.to(device)
    with torch.inference_mode():
        for files, real in ((images, False), (reference, True)):
            for _, alike in itertools.groupby(map(_pixels, files), key=lambda pixels: pixels.shape):
                for batch in _batches(alike, BATCH):
                    metric.update(torch.stack(batch).to(device), real=real)
        return float(metric.compute())


def _torchmetrics(module: str, name: str) -> Callable[..., Any]:
    try:
        found = importlib.import_module(f"torchmetrics.{module}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the package {str(error.name).partition('.')[0]} is not installed",
            _INSTALL,
        ) from error
    return getattr(found, name)


def _pixels(file: Path) -> Tensor:
    """Return an image as uint8 [3, H, W]."""
    try:
        with Image.open(file) as opened:
            return torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ) as error:  # SyntaxError: Pillow, for a broken chunk
        raise FolderError(
            f"{file} is not an image that can be read: {error}", "see `sjdvp check`"
        ) from error


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    return iter(lambda: list(itertools.islice(rest, size)), [])
