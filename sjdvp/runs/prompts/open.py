"""From the bytes of one file or pipe to its reader."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sjdvp.errors import PromptError
from sjdvp.runs.prompts.objects import read_coco, read_geneval, read_json, read_jsonl, read_yaml
from sjdvp.runs.prompts.options import ReadOptions
from sjdvp.runs.prompts.parquet import read_parquet
from sjdvp.runs.prompts.record import Found
from sjdvp.runs.prompts.sniff import Ahead, Refused, sniff
from sjdvp.runs.prompts.tables import read_csv, read_tsv
from sjdvp.runs.prompts.text import Line, read_txt, split_lines
from sjdvp.runs.prompts.unpack import recognise, unpack
from sjdvp.text import printable

READERS: dict[str, Callable[[Iterable[Line], ReadOptions], Iterator[Found]]] = {
    "txt": read_txt,
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "json": read_json,
    "coco": read_coco,
    "geneval": read_geneval,
    "yaml": read_yaml,
}


def open_text(
    chunks: Iterable[bytes], name: str, options: ReadOptions
) -> tuple[str, Iterator[Found]]:
    """Return the name of the reader and what it finds; reads no further than it must.

    Raises PromptError for what is not a prompt file: binary files, web pages, and the like.
    """
    chunks, packed = unpack(chunks, printable(name))
    format = options.format
    if format == "auto":
        chunks, what, advice = recognise(chunks)
        if what and what != "Parquet":
            raise PromptError(f"{printable(name)}: {what}, not a prompt file", advice)
        format = "parquet" if what else "auto"
    if format == "parquet":
        return format, read_parquet(chunks, options)
    lines = Ahead(split_lines(chunks))
    found = sniff(lines, _suffix(name, packed=packed), options) if format == "auto" else format
    if isinstance(found, Refused):
        raise PromptError(f"{printable(name)}: {found.what}", found.advice)
    return found, READERS[found](lines, options)


def _suffix(name: str, *, packed: bool) -> str:
    path = Path(name.lower())
    return Path(path.stem).suffix if packed and path.suffix in (".gz", ".gzip") else path.suffix
