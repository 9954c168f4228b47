"""The folder layouts that evaluators read, as pure functions: images in, file names out.

A missing image is None and never shifts the names of the others.
"""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.sharding import image_file
from sjdvp.text import printable

_NAME_BYTES = 200  # of 255: a number, a suffix and the name of a temporary file must fit too


@dataclass(frozen=True, slots=True)
class PromptImages:
    """One prompt and its images, by sample; None: missing, failed or corrupt."""

    prompt: Prompt
    images: tuple[Path | None, ...]

    def present(self) -> Iterator[tuple[int, Path]]:
        """Yield sample and file of the images that are there."""
        return ((sample, image) for sample, image in enumerate(self.images) if image is not None)


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
class MetadataFile:
    """A JSONL file about the images."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An image that exists but has no place in this layout."""

    reason: str


ExportItem = ExportedImage | ExportedGrid | MetadataFile | LeftOut
ExportLayout = Callable[[Sequence[PromptImages]], Iterator[ExportItem]]


def geneval(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as 00000/metadata.jsonl and 00000/samples/00000.png; the folder is the prompt row."""
    for each in prompts:
        for sample, image in each.present():
            yield ExportedImage(
                f"{each.prompt.index:05d}/samples/{sample:05d}.png", image, each.prompt.index
            )
        if any(each.images):
            yield MetadataFile(
                f"{each.prompt.index:05d}/metadata.jsonl",
                _json_line({**each.prompt.extra, "prompt": each.prompt.text}),
            )


def t2i_compbench(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as samples/PROMPT_000000.png.

    The evaluator reads the prompt up to the first "_" and sorts by the number.
    """
    for each in prompts:
        name = safe_name(each.prompt.text.replace("_", " "))
        for sample, image in each.present():
            yield ExportedImage(
                f"samples/{name}_{each.prompt.index * len(each.images) + sample:06d}.png",
                image,
                each.prompt.index,
            )


def dpg(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as ID.png: the image, or a grid of two columns when a prompt has several.

    The evaluator cuts up to four images out of a grid.
    """
    for each in prompts:
        name = f"{safe_name(each.prompt.id or str(each.prompt.index))}.png"
        first_four = tuple(image for image in each.images[:4] if image is not None)
        if len(each.images) == 1 and first_four:
            yield ExportedImage(name, first_four[0], each.prompt.index)
        elif first_four and len(first_four) == len(each.images[:4]):
            yield ExportedGrid(name, first_four, each.prompt.index)
        elif first_four:
            yield LeftOut(
                f"row {each.prompt.index}: a grid of {len(each.images[:4])} needs all of its images"
            )
        yield from (
            LeftOut(f"row {each.prompt.index}: a fifth image or later")
            for s, _ in each.present()
            if s >= 4
        )


def hpsv2(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as STYLE/00000.jpg (the content is PNG), one image per prompt.

    STYLE is the prompt's column `style`; images are numbered within it.
    """
    numbers: Counter[str] = Counter()
    for each in prompts:
        style = each.prompt.extra.get("style")
        folder = f"{safe_name(style)}/" if isinstance(style, str) and style else ""
        number = numbers[folder]
        numbers[folder] += 1
        for sample, image in each.present():
            if sample == 0:
                yield ExportedImage(f"{folder}{number:05d}.jpg", image, each.prompt.index)
            else:
                yield LeftOut(f"row {each.prompt.index}: sample {sample}")


def flat(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as 000000.png, or 000000_00.png when a prompt has several images."""
    for each in prompts:
        for sample, image in each.present():
            yield ExportedImage(
                Path(image_file(each.prompt.index, sample, len(each.images))).name,
                image,
                each.prompt.index,
            )


def imagefolder(prompts: Sequence[PromptImages]) -> Iterator[ExportItem]:
    """Lay out as `flat` with a metadata.jsonl, as the imagefolder loader of `datasets` reads it."""
    lines = []
    for each in prompts:
        for link in flat([each]):
            yield link
            if isinstance(link, ExportedImage):
                lines.append(
                    {
                        "file_name": link.name,
                        "text": each.prompt.text,
                        "index": each.prompt.index,
                        "id": each.prompt.id,
                    }
                )
    yield MetadataFile("metadata.jsonl", b"".join(map(_json_line, lines)))


LAYOUTS: dict[str, ExportLayout] = {
    "geneval": geneval,
    "t2i-compbench": t2i_compbench,
    "dpg": dpg,
    "hpsv2": hpsv2,
    "flat": flat,
    "imagefolder": imagefolder,
}


def safe_name(text: str) -> str:
    """Return `text` as a file name.

    It is not empty or too long, and has no separator, control character or leading dot.
    """
    shown = printable(text).translate({ord(c): " " for c in "/\\"}).strip().lstrip(". ")
    return shown.encode()[:_NAME_BYTES].decode(errors="ignore").strip() or "prompt"


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
