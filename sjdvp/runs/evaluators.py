"""The folder shapes that evaluators read, as pure functions: images in, names out.

A image that is missing is None and never shifts the names of the others.
"""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from sjdvp.runs.layout import image_file
from sjdvp.runs.prompts.model import Prompt
from sjdvp.text import printable

_NAME_BYTES = 200  # of 255: a number, a suffix and a temporary name must fit too


@dataclass(frozen=True, slots=True)
class Shown:
    """One prompt and its images, by sample; None: missing, failed or corrupt."""

    prompt: Prompt
    images: tuple[Path | None, ...]

    def present(self) -> Iterator[tuple[int, Path]]:
        """Yield sample and file of the images that are there."""
        return ((sample, image) for sample, image in enumerate(self.images) if image is not None)


@dataclass(frozen=True, slots=True)
class Link:
    """A image under another name, relative to the target."""

    name: str
    image: Path
    row: int  # of its prompt


@dataclass(frozen=True, slots=True)
class Grid:
    """Images of one prompt side by side in one, two columns wide."""

    name: str
    images: tuple[Path, ...]
    row: int  # of their prompt


@dataclass(frozen=True, slots=True)
class Table:
    """A file about the images, as JSON lines."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A image that exists but has no place in this layout."""

    reason: str


Item = Link | Grid | Table | LeftOut
Layout = Callable[[Sequence[Shown]], Iterator[Item]]


def geneval(shown: Sequence[Shown]) -> Iterator[Item]:
    """Lay out as 00000/metadata.jsonl and 00000/samples/00000.png, the number being the prompt's row."""
    for each in shown:
        for sample, image in each.present():
            yield Link(
                f"{each.prompt.index:05d}/samples/{sample:05d}.png", image, each.prompt.index
            )
        if any(each.images):
            yield Table(
                f"{each.prompt.index:05d}/metadata.jsonl",
                _json_line({**each.prompt.extra, "prompt": each.prompt.text}),
            )


def t2i_compbench(shown: Sequence[Shown]) -> Iterator[Item]:
    """Lay out as samples/PROMPT_000000.png; the evaluator reads the prompt up to the first "_" and sorts by the number."""
    for each in shown:
        name = safe_name(each.prompt.text.replace("_", " "))
        for sample, image in each.present():
            yield Link(
                f"samples/{name}_{each.prompt.index * len(each.images) + sample:06d}.png",
                image,
                each.prompt.index,
            )


def dpg(shown: Sequence[Shown]) -> Iterator[Item]:
    """Lay out as ID.png: the image, or with several a prompt a grid of two columns (the evaluator cuts up to four out of it)."""
    for each in shown:
        name = f"{safe_name(each.prompt.id or str(each.prompt.index))}.png"
        first_four = tuple(image for image in each.images[:4] if image is not None)
        if len(each.images) == 1 and first_four:
            yield Link(name, first_four[0], each.prompt.index)
        elif first_four and len(first_four) == len(each.images[:4]):
            yield Grid(name, first_four, each.prompt.index)
        elif first_four:
            yield LeftOut(
                f"row {each.prompt.index}: a grid of {len(each.images[:4])} needs all of its images"
            )
        yield from (
            LeftOut(f"row {each.prompt.index}: a fifth image or later")
            for s, _ in each.present()
            if s >= 4
        )


def hpsv2(shown: Sequence[Shown]) -> Iterator[Item]:
    """Lay out as STYLE/00000.jpg (by content a PNG), numbered within the carried column `style`, one image a prompt."""
    place: Counter[str] = Counter()
    for each in shown:
        style = each.prompt.extra.get("style")
        folder = f"{safe_name(style)}/" if isinstance(style, str) and style else ""
        number = place[folder]
        place[folder] += 1
        for sample, image in each.present():
            if sample == 0:
                yield Link(f"{folder}{number:05d}.jpg", image, each.prompt.index)
            else:
                yield LeftOut(f"row {each.prompt.index}: sample {sample}")


def flat(shown: Sequence[Shown]) -> Iterator[Item]:
    """Lay out as 000000.png, or 000000_00.png with several a prompt."""
    for each in shown:
        for sample, image in each.present():
            yield Link(
                Path(image_file(each.prompt.index, sample, len(each.images))).name,
                image,
                each.prompt.index,
            )


def imagefolder(shown: Sequence[Shown]) -> Iterator[Item]:
    """Lay out as `flat` with a metadata.jsonl of file_name and text, as the datasets library reads it."""
    lines = []
    for each in shown:
        for link in flat([each]):
            yield link
            if isinstance(link, Link):
                lines.append(
                    {
                        "file_name": link.name,
                        "text": each.prompt.text,
                        "index": each.prompt.index,
                        "id": each.prompt.id,
                    }
                )
    yield Table("metadata.jsonl", b"".join(map(_json_line, lines)))


LAYOUTS: dict[str, Layout] = {
    "geneval": geneval,
    "t2i-compbench": t2i_compbench,
    "dpg": dpg,
    "hpsv2": hpsv2,
    "flat": flat,
    "imagefolder": imagefolder,
}


def safe_name(text: str) -> str:
    """Return `text` as one part of a path: no separators, control characters or leading dots, short enough, never empty."""
    shown = printable(text).translate({ord(c): " " for c in "/\\"}).strip().lstrip(". ")
    return shown.encode()[:_NAME_BYTES].decode(errors="ignore").strip() or "prompt"


def _json_line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def grid_png(images: Sequence[Path]) -> bytes:
    """Return a PNG of images of one size, row by row in two columns."""
    opened = [Image.open(path) for path in images]
    width, height = opened[0].size
    grid = Image.new("RGB", (2 * width, (len(opened) + 1) // 2 * height))
    for i, image in enumerate(opened):
        grid.paste(image, (i % 2 * width, i // 2 * height))
    buffer = io.BytesIO()
    grid.save(buffer, format="PNG")
    return buffer.getvalue()
