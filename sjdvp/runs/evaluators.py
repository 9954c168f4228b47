"""The folder layouts that evaluators and trainers read, as pure functions: images in, names out.

A missing image is None and never shifts the names of the others. A name has the suffix that an
evaluator asks for; the bytes are those of the run.
"""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.sharding import image_file
from sjdvp.text import printable

_NAME_BYTES = 200  # of 255: a number, a suffix and the name of a temporary file must fit too
_TAR_IMAGES = 1000  # per shard of a WebDataset
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp"})


@dataclass(frozen=True, slots=True)
class PromptImages:
    """One prompt and its images, by sample; None: missing, failed or corrupt."""

    prompt: Prompt
    images: tuple[Path | None, ...]
    model: str = "model"  # what the weights are called

    @property
    def row(self) -> int:
        """The row of the prompt."""
        return self.prompt.index

    @property
    def benchmark_prompt(self) -> str:
        """The benchmark's own prompt, also where another column was used to generate."""
        own = self.prompt.extra.get("prompt")
        return own if isinstance(own, str) else self.prompt.text

    def present(self) -> Iterator[tuple[int, Path]]:
        """Yield sample and file of the images that are there."""
        return ((sample, image) for sample, image in enumerate(self.images) if image is not None)

    def column(self, name: str) -> str:
        """Return a column of the prompt file as text; empty where it is absent."""
        value = self.prompt.extra.get(name)
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


@dataclass(frozen=True, slots=True)
class ExportedImage:
    """An image under another name, relative to the target."""

    name: str
    image: Path
    row: int  # of the prompt


@dataclass(frozen=True, slots=True)
class ExportedGrid:
    """The images of one prompt in one image, two columns wide."""

    name: str
    images: tuple[Path, ...]
    row: int  # of the prompt


@dataclass(frozen=True, slots=True)
class ExportedTar:
    """Images with their texts in one tar file; members are file names with a path or bytes."""

    name: str
    members: tuple[tuple[str, Path | bytes], ...]
    row: int  # of the first prompt

    @property
    def images(self) -> int:
        """Number of images."""
        return sum(isinstance(content, Path) for _, content in self.members)


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A file about the images."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class NotExported:
    """An image that exists but has no place in this layout."""

    reason: str


ExportFile = ExportedImage | ExportedGrid | ExportedTar | MetadataFile
ExportItem = ExportFile | NotExported
ExportLayout = Callable[[Sequence[PromptImages]], Iterator[ExportItem]]


def geneval(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as 00000/metadata.jsonl and 00000/samples/00000.png; the folder is the prompt row.

    metadata.jsonl is the line of the benchmark, with its own prompt.
    """
    for each in prompts:
        folder = f"{each.row:05d}"
        for sample, image in each.present():
            yield ExportedImage(f"{folder}/samples/{sample:05d}.png", image, each.row)
        if any(each.images):
            line = {**each.prompt.extra, "prompt": each.benchmark_prompt}
            yield MetadataFile(f"{folder}/metadata.jsonl", _json_line(line))


def t2i_compbench(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as samples/PROMPT_000000.png.

    The evaluator takes the prompt from the name, up to the first "_", and sorts by the number. An
    image is left out when a file name cannot hold its prompt.
    """
    most = max((len(each.images) for each in prompts), default=1)
    for each in prompts:
        text = each.benchmark_prompt
        if safe_name(text) != text or "_" in text:
            if any(each.images):
                yield NotExported(f"row {each.row}: a file name cannot hold its prompt")
            continue
        for sample, image in each.present():
            number = each.row * most + sample
            yield ExportedImage(f"samples/{text}_{number:06d}.png", image, each.row)


def dpg(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as ID.png: the image, or a grid of two columns when a prompt has several.

    The evaluator cuts up to four images out of a grid.
    """
    for each in prompts:
        name = f"{safe_name(each.prompt.id or str(each.row))}.png"
        first_four = tuple(image for image in each.images[:4] if image is not None)
        if len(each.images) == 1 and first_four:
            yield ExportedImage(name, first_four[0], each.row)
        elif first_four and len(first_four) == len(each.images[:4]):
            yield ExportedGrid(name, first_four, each.row)
        elif first_four:
            count = len(each.images[:4])
            yield NotExported(f"row {each.row}: a grid of {count} needs all of its images")
        for sample, _ in each.present():
            if sample >= 4:
                yield NotExported(f"row {each.row}: a fifth image or later")


def hpsv2(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as STYLE/00000.jpg, one image per prompt, whatever the format of the image.

    STYLE is the prompt's column `style`; images are numbered within it.
    """
    numbers: Counter[str] = Counter()
    for each in prompts:
        style = each.prompt.extra.get("style")
        folder = f"{safe_name(style)}/" if isinstance(style, str) and style else ""
        yield from _first_image(each, f"{folder}{numbers[folder]:05d}.jpg")
        numbers[folder] += 1


def wise(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as PROMPT_ID.png, one image per prompt; the column `prompt_id`, or the id.

    As gpt_eval.py of github.com/PKU-YuanGroup/WISE opens them, all categories in one folder.
    """
    for each in prompts:
        name = each.column("prompt_id") or each.prompt.id
        if name:
            yield from _first_image(each, f"{safe_name(name)}.png")
        elif any(each.images):
            yield NotExported(f"row {each.row}: it has no column prompt_id")


def tiif(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as TYPE/MODEL/short_description/0.png, numbered within TYPE, one image per prompt.

    TYPE is the prompt's column `type`. The evaluator has both descriptions; the one that is not
    carried with the prompt was used to generate. As eval/eval_with_vlm.py of
    github.com/A113N-W3I/TIIF-Bench finds them: by line of the type's file, with any image suffix.
    """
    numbers: Counter[str] = Counter()
    for each in prompts:
        kind, carried = each.column("type"), each.prompt.extra
        used = [name for name in ("short_description", "long_description") if name not in carried]
        if kind and len(used) == 1:
            folder = f"{safe_name(kind)}/{safe_name(each.model)}/{used[0]}"
            yield from _first_image(each, f"{folder}/{numbers[kind]}{_suffix(each)}")
        elif any(each.images):
            missing = "short_description or long_description" if kind else "a column type"
            yield NotExported(f"row {each.row}: not a prompt of TIIF-Bench, it lacks {missing}")
        numbers[kind] += 1


def mjhq(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as CATEGORY/ID.png, one image per prompt; the column `category`, and the id.

    As mjhq30k_imgs.zip of huggingface.co/datasets/playgroundai/MJHQ-30K, for FID by category.
    """
    for each in prompts:
        category, name = each.column("category"), each.prompt.id
        if category and name:
            file = f"{safe_name(name)}{_suffix(each)}"
            yield from _first_image(each, f"{safe_name(category)}/{file}")
        elif any(each.images):
            missing = "an id" if category else "a column category"
            yield NotExported(f"row {each.row}: it lacks {missing}")


def genai_bench(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as MODEL/00000.jpeg, one image per prompt, whatever the format of the image.

    The name is the id of the prompt, which the benchmark writes with five digits, or its row.
    MODEL is --gen_model of genai_bench/evaluate.py in github.com/linzhiqiu/t2v_metrics.
    """
    for each in prompts:
        name = each.prompt.id or str(each.row)
        name = f"{int(name):05d}" if name.isascii() and name.isdigit() else safe_name(name)
        yield from _first_image(each, f"{safe_name(each.model)}/{name}.jpeg")


def flat(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as 000000.png, or 000000_00.png when a prompt has several images.

    A column `filename` of the prompt file replaces the number.
    """
    for each in prompts:
        for sample, image in each.present():
            yield ExportedImage(_flat_name(each, sample, image), image, each.row)


def imagefolder(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as `flat` with a metadata.jsonl, as the imagefolder loader of `datasets` reads it.

    A line has the text, row and id of the prompt and all columns of the prompt file.
    """
    columns = {name: None for each in prompts for name in each.prompt.extra}
    lines = []
    for each in prompts:
        for sample, image in each.present():
            name = _flat_name(each, sample, image)
            yield ExportedImage(name, image, each.row)
            lines.append({**columns, **each.prompt.extra, "file_name": name, **_about(each)})
    yield MetadataFile("metadata.jsonl", b"".join(map(_json_line, lines)))


def captions(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as `flat`, with the prompt of each image in a .txt file beside it."""
    for each in prompts:
        for sample, image in each.present():
            name = _flat_name(each, sample, image)
            yield ExportedImage(name, image, each.row)
            yield MetadataFile(f"{_stem(name)}.txt", each.prompt.text.encode())


def webdataset(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as tar shards of 1000 images: 00000.tar with 000000.png, 000000.txt, 000000.json."""
    every = ((each, sample, image) for each in prompts for sample, image in each.present())
    number = 0
    while shard := list(islice(every, _TAR_IMAGES)):
        members: list[tuple[str, Path | bytes]] = []
        for each, sample, image in shard:
            name = Path(image_file(each.row, sample, len(each.images))).with_suffix(image.suffix)
            members.append((name.name, image))
            members.append((f"{name.stem}.txt", each.prompt.text.encode()))
            about = {**each.prompt.extra, **_about(each), "sample": sample}
            members.append((f"{name.stem}.json", _json_line(about)))
        yield ExportedTar(f"{number:05d}.tar", tuple(members), shard[0][0].row)
        number += 1


LAYOUTS: dict[str, ExportLayout] = {
    "geneval": geneval,
    "t2i-compbench": t2i_compbench,
    "dpg": dpg,
    "hpsv2": hpsv2,
    "wise": wise,
    "tiif": tiif,
    "mjhq": mjhq,
    "genai-bench": genai_bench,
    "flat": flat,
    "imagefolder": imagefolder,
    "captions": captions,
    "webdataset": webdataset,
}


def safe_name(text: str) -> str:
    """Return `text` as a file name.

    It is not empty or too long, and has no separator, control character or leading dot.
    """
    shown = printable(text).translate({ord(c): " " for c in "/\\"}).strip().lstrip(". ")
    return shown.encode()[:_NAME_BYTES].decode(errors="ignore").strip() or "prompt"


def _first_image(each: PromptImages, name: str) -> Iterator[ExportItem]:
    """Yield the first image of a prompt; the others have no place in the layout."""
    for sample, image in each.present():
        if sample == 0:
            yield ExportedImage(name, image, each.row)
        else:
            yield NotExported(f"row {each.row}: sample {sample}")


def _suffix(each: PromptImages) -> str:
    """Return the suffix of a prompt's first image."""
    return each.images[0].suffix if each.images[0] else ".png"


def _flat_name(each: PromptImages, sample: int, image: Path) -> str:
    given = each.prompt.asked.get("filename")
    if given is None:
        return Path(image_file(each.row, sample, len(each.images))).stem + image.suffix
    own = safe_name(_stem(given) if Path(given).suffix.lower() in IMAGE_SUFFIXES else given)
    return own + (f"_{sample:02d}" if len(each.images) > 1 else "") + image.suffix


def _stem(name: str) -> str:
    return name.removesuffix(Path(name).suffix)


def _about(each: PromptImages) -> dict[str, Any]:
    return {"text": each.prompt.text, "index": each.row, "id": each.prompt.id}


def _json_line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def grid_png(images: Sequence[Path]) -> bytes:
    """Return a PNG of images of equal size in two columns, image row by image row."""
    opened = [Image.open(path) for path in images]
    width, height = opened[0].size
    grid = Image.new("RGB", (2 * width, (len(opened) + 1) // 2 * height))
    for i, image in enumerate(opened):
        grid.paste(image, (i % 2 * width, i // 2 * height))
    buffer = io.BytesIO()
    grid.save(buffer, format="PNG")
    return buffer.getvalue()
