"""The shapes of JSON and YAML documents, and how each becomes rows.

A shape is a function that returns the entries of a document, or None for another shape.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sjdvp.runs.prompts.columns import (
    PROMPT_NAMES,
    find_column,
    has,
    kind,
    lookup,
    make_prompt,
    make_row,
    missing_column,
)
from sjdvp.runs.prompts.model import Found, LeftOut, Problem, ReadOptions, Shape, names_of

_LISTS = frozenset({*PROMPT_NAMES, "captions", "texts", "data", "rows", "records", "items"})
_ORIENT = "with pandas: to_json(orient='records')"
_SHAPES_READ = (
    "read are: a list, one list under 'prompts', records or texts by id, lists by style, columns "
    "of a table (pandas), COCO captions, one record (--column KEY); jq '.KEY' FILE takes a part out"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One prompt of a document: text or a record, with the name that the document gives it."""

    where: str
    value: Any
    key: str | None = None
    carried: Mapping[str, Any] = field(default_factory=dict)


Entries = Iterator[Entry | Found]
ReadShape = Callable[[dict[str, Any], ReadOptions], Entries | None]


def read_document(value: Any, options: ReadOptions) -> Iterator[Found]:
    """Yield the prompts of a document, whatever its shape."""
    if isinstance(value, list):
        yield from _rows(_listed(value), options)
    elif isinstance(value, dict) and value:
        for shape in _SHAPES:
            entries = shape(value, options)
            if entries is not None:
                yield from _rows(entries, _with_column(options, _TEXT_OF.get(shape)))
                return
        keys = names_of(map(repr, value))
        message = f"an object of a shape that is not read, keys {keys}"
        yield Problem("file", message, _SHAPES_READ)
    else:
        yield Problem("file", f"must be a list or an object, found {kind(value)}")


def read_annotations(value: Any, options: ReadOptions) -> Iterator[Found]:
    """Yield COCO's captions; anything else is a problem."""
    entries = _annotations(value, options) if isinstance(value, dict) else None
    if entries is None:
        yield Problem("file", f"{kind(value)} without a list 'annotations': not COCO captions")
    else:
        yield from _rows(entries, _with_column(options, "caption"))


def _with_column(options: ReadOptions, column: str | None) -> ReadOptions:
    return replace(options, columns=(column,)) if column and not options.columns else options


def _rows(entries: Iterable[Entry | Found], options: ReadOptions) -> Iterator[Found]:
    for entry in entries:
        if not isinstance(entry, Entry):
            yield entry
        elif isinstance(entry.value, dict):
            record = {**entry.carried, **entry.value}
            yield make_row(entry.where, record, options, entry.key)
        elif isinstance(entry.value, str) and not (options.columns or options.id_column):
            key = entry.key if options.ids else None
            extra = {**entry.carried, **({"key": entry.key} if entry.key and not key else {})}
            yield make_prompt(entry.where, entry.value, key, extra)
        else:
            advice = _ORIENT if isinstance(entry.value, list) else ""
            message = f"must be an object with a prompt, found {kind(entry.value)}"
            yield Problem(entry.where, message, advice)


def _listed(value: list[Any], name: str = "entry", **carried: Any) -> Iterator[Entry]:
    for number, entry in enumerate(value, start=1):
        yield Entry(f"{name} {number}", entry, carried=carried)


def _annotations(value: dict[str, Any], options: ReadOptions) -> Entries | None:
    """Read COCO captions: each annotation is a prompt, with the annotation's id."""
    annotations = value.get("annotations")
    if not isinstance(annotations, list):
        return None
    return _chained([Shape("coco")], _listed(annotations, "annotation"))


def _karpathy(value: dict[str, Any], options: ReadOptions) -> Entries | None:
    """Read Karpathy's split of COCO or Flickr: each sentence of each image is a prompt."""
    images = value.get("images")
    if not isinstance(images, list) or not images or not has(images[0], "sentences.0.raw"):
        return None
    return (
        Entry(f"image {number}, sentence {place}", _sentence(image, sentence))
        for number, image in enumerate(images, start=1)
        for place, sentence in enumerate(_inner(image, "sentences"), start=1)
    )


def _sentence(image: dict[str, Any], sentence: Any) -> Any:
    if not isinstance(sentence, dict):
        return sentence
    named = {"id": sentence["sentid"]} if "sentid" in sentence else {}
    return {**_plain(image), **_plain(sentence), **named}


def _inner(value: Any, key: str) -> list[Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, list) else []


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not isinstance(value, list | dict)}


def _split(value: dict[str, Any], options: ReadOptions) -> Entries | None:
    """Read pandas' orient='split': names once, then rows of cells."""
    names, rows = value.get("columns"), value.get("data")
    if not isinstance(names, list) or not isinstance(rows, list):
        return None
    labels = value.get("index")
    keys = _labels(labels) if isinstance(labels, list) and len(labels) == len(rows) else None
    return (
        Entry(
            f"row {n}", dict(zip(map(str, names), row, strict=True)), keys[n - 1] if keys else None
        )
        if isinstance(row, list) and len(row) == len(names)
        else Problem(f"row {n}", f"must be a list of {len(names)} cells")
        for n, row in enumerate(rows, start=1)
    )


def _columns(value: dict[str, Any], options: ReadOptions) -> Entries | None:
    """Read pandas' usual orient, 'columns': a table column by column, each label by label."""
    if not all(isinstance(column, dict) for column in value.values()):
        return None
    labels = [*next(iter(value.values()), {})]
    if any([*column] != labels for column in value.values()) or not labels:
        return None
    named = find_column(value, options.columns)
    if named not in value or not all(isinstance(v, str | None) for v in value[named].values()):
        # Numbered rows that hold no records: a table whose prompts have an unusual name.
        cells = [cell for column in value.values() for cell in column.values()]
        if labels == _counted(labels) and not any(isinstance(cell, dict) for cell in cells):
            return iter([missing_column("file", value, options)])
        return None
    keys = _labels(labels)
    return (
        Entry(
            f"row {label!r}",
            {name: column[label] for name, column in value.items()},
            keys[number] if keys else None,
        )
        for number, label in enumerate(labels)
    )


def _column_lists(value: dict[str, Any], options: ReadOptions) -> Entries | None:
    """Read a table as one list for each column."""
    lists = {key: column for key, column in value.items() if isinstance(column, list)}
    named = find_column(lists, options.columns)
    if len(lists) < 2 or named not in lists or len({len(column) for column in lists.values()}) > 1:
        return None
    if not all(isinstance(text, str | None) for text in lists[named]):
        return None
    carried, notes = _beside(value, lists)
    rows = (dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True))
    entries = (Entry(f"row {n}", row, carried=carried) for n, row in enumerate(rows, start=1))
    return _chained(notes, entries)


def _one_record(value: dict[str, Any], options: ReadOptions) -> Entries | None:
    """Read a single record."""
    named = find_column(value, options.columns)
    if named is None or not isinstance(lookup(value, named), str):
        return None
    return iter([Entry("entry 1", value)])


def _wrapped(value: dict[str, Any], options: ReadOptions) -> Entries | None:
    """Read one list (or object) of prompts under a usual name; what is beside it holds for all."""
    inner = [k for k, v in value.items() if k.casefold() in _LISTS and isinstance(v, list | dict)]
    texts = [k for k, v in value.items() if isinstance(v, list) and v and isinstance(v[0], str)]
    if len(inner) != 1 or (inner[0].casefold() not in PROMPT_NAMES and set(texts) - {*inner}):
        return None
    carried, notes = _beside(value, inner)
    held = value[inner[0]]
    if isinstance(held, list):
        return _chained(notes, _listed(held, **carried))
    entries = next(filter(None, (shape(held, options) for shape in _SHAPES)), None)
    if entries is None:
        return None
    return _chained(notes, (_carrying(carried, entry) for entry in entries))


def _carrying(carried: dict[str, Any], entry: Entry | Found) -> Entry | Found:
    return (
        replace(entry, carried={**carried, **entry.carried}) if isinstance(entry, Entry) else entry
    )


def _by_key(value: dict[str, Any], options: ReadOptions) -> Entries | None:
    """Read records or texts by id (texts: with a digit or suffix in each id)."""
    records = all(isinstance(entry, dict) for entry in value.values())
    texts = all(isinstance(v, str) and re.search(r"[\d.]", k) for k, v in value.items())
    if not records and not texts:
        return None
    return (Entry(f"entry {key!r}", entry, key) for key, entry in value.items())


def _by_style(value: dict[str, Any], options: ReadOptions) -> Entries | None:
    """Read lists of prompts by style, which is carried."""
    if not all(isinstance(entries, list) for entries in value.values()):
        return None
    return (
        entry
        for style, entries in value.items()
        for entry in _listed(entries, f"{style!r}, entry", style=style)
    )


_SHAPES: tuple[ReadShape, ...] = (
    _annotations,
    _karpathy,
    _split,
    _column_lists,
    _columns,
    _one_record,
    _wrapped,
    _by_key,
    _by_style,
)
_TEXT_OF: dict[ReadShape, str] = {
    _annotations: "caption",
    _karpathy: "raw",
}  # where --column does not say


def _beside(
    value: dict[str, Any], taken: Iterable[str]
) -> tuple[dict[str, Any], Iterator[LeftOut]]:
    """Return what holds for every entry (plain values, `defaults`), and a note of the rest."""
    rest = {key: held for key, held in value.items() if key not in set(taken)}
    defaults = rest.pop("defaults", {})
    carried = {**_plain(rest), **(defaults if isinstance(defaults, dict) else {})}
    left = [key for key in rest if key not in carried]
    return carried, iter([LeftOut(f"not read: {names_of(map(repr, left))}")] if left else [])


def _chained(notes: Iterable[Found], entries: Iterable[Entry | Found]) -> Entries:
    yield from notes
    yield from entries


def _labels(labels: list[Any]) -> list[str] | None:
    """Return the labels of a table's rows, None where they only count them."""
    names = [str(label) for label in labels]
    return None if names == _counted(names) else names


def _counted(labels: list[Any]) -> list[str]:
    return [str(number) for number in range(len(labels))]
