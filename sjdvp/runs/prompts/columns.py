"""From a record (an object of JSON, a row of a table) to a prompt, its id and other columns.

`--template '{prompt}, flat design'` makes prompts of a text and of columns.
"""

import re
import shlex
import string
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sjdvp.errors import ConfigError
from sjdvp.runs.prompts.model import Empty, Found, Problem, ReadOptions, Row, is_blank

PROMPT_NAMES = ("prompt", "prompts", "caption", "text")
_WHOLE_FLOAT = re.compile(r"\d+\.0")  # how pandas writes a whole number of a column with gaps
_MOST_NAMES = 20  # listed in one message
_ABSENT = object()


def lookup(record: Any, path: str) -> Any:
    """Return `record[path]`, or what `A.B.0` leads to inside of it; raises KeyError."""
    if isinstance(record, Mapping) and path in record:
        return record[path]
    value = record
    for part in path.split("."):
        if isinstance(value, list) and part.isascii() and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            raise KeyError(path)
    return value


def find_column(record: dict[str, Any], columns: tuple[str, ...]) -> str | None:
    """Return which column holds the prompt: the first of `columns`, else of the usual names.

    Spaces around a name in the file do not count; case does, except for the usual names.
    """
    for wanted in columns:
        for name in (wanted, *(name for name in record if name.strip() == wanted)):
            if has(record, name):
                return name
    if columns:
        return None
    folded = {name.strip().casefold(): name for name in reversed(record)}
    return next((folded[name] for name in PROMPT_NAMES if name in folded), None)


def has(record: Any, path: str) -> bool:
    """Say whether `lookup` finds something."""
    try:
        lookup(record, path)
    except KeyError:
        return False
    return True


def missing_column(where: str, record: dict[str, Any], options: ReadOptions) -> Problem:
    """Say that no column holds the prompt, and which columns there are."""
    wanted = " or ".join(map(repr, options.columns)) or f"named {', '.join(PROMPT_NAMES)}"
    found = ", ".join(map(repr, [*record][:_MOST_NAMES]))
    inner = [
        f"{key}.{name}"
        for key, value in record.items()
        for inside in (value if isinstance(value, dict) else {},)
        for name in [find_column(inside, ())]
        if name is not None
    ]
    advice = f"--column {shlex.quote(inner[0])}" if inner else "name one of them with --column"
    return Problem(where, f"no column {wanted}; found: {found}", advice)


def make_row(
    where: str, record: dict[str, Any], options: ReadOptions, key: str | None = None
) -> Found:
    """Turn a record into a prompt; `key`, the name that the file gives it, becomes its id."""
    column = find_column(record, options.columns)
    if column is None:
        return missing_column(where, record, options)
    text = lookup(record, column)
    if text is None or (isinstance(text, str) and is_blank(text)):
        return Empty(where, f"no prompt in {column!r}")
    if not isinstance(text, str):
        first = isinstance(text, list) and text and isinstance(text[0], str)
        advice = f"--column {shlex.quote(f'{column}.0')} takes the first" if first else ""
        return Problem(where, f"{column!r} must be text, found {kind(text)}", advice)
    id_column = _id_column(record, options, key)
    if options.id_column and id_column is None:
        return Problem(where, f"no column {options.id_column!r} for the id")
    value = lookup(record, id_column) if id_column else key
    identity = _identity(value)
    if identity is _ABSENT:
        message = f"{id_column!r} must be text or a whole number, found {kind(value)}"
        return Problem(where, message, "--no-ids keeps it as a plain column")
    used = {id_column} if options.template else {column, id_column}
    extra = {name: value for name, value in record.items() if name not in used}
    if column != "prompt" and isinstance(extra.get("prompt"), str):
        extra.setdefault(column, text)  # beside the benchmark's own prompt, for `export`
    if key is not None and (not options.ids or id_column):
        extra.setdefault("key", key)
    return make_prompt(where, text, identity if options.ids else None, extra, column)


def make_prompt(
    where: str, text: str, identity: str | None, extra: Mapping[str, Any], column: str = "prompt"
) -> Found:
    """Return the row of a prompt that is text, or why it cannot be one."""
    if is_blank(text):
        return Empty(where, "an empty prompt")
    if "\0" in text or "\0" in (identity or ""):
        return Problem(where, "a NUL character")
    return Row(where, text.replace("\ufeff", ""), identity, extra, column)


def _id_column(record: dict[str, Any], options: ReadOptions, key: str | None) -> str | None:
    if not options.ids:
        return None
    if options.id_column:
        names = (options.id_column, *(n for n in record if n.strip() == options.id_column))
        return next((name for name in names if has(record, name)), None)
    return "id" if key is None and "id" in record else None


def _identity(value: Any) -> Any:
    """Return an id as text, None where there is none, _ABSENT for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        return _ABSENT
    if isinstance(value, float) and not value.is_integer():
        return _ABSENT
    text = "" if value is None else str(int(value) if isinstance(value, float) else value)
    text = text.removesuffix(".0") if _WHOLE_FLOAT.fullmatch(text) else text
    return text or None


def kind(value: Any) -> str:
    """Name the type of a JSON value for people."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "null" if value is None else kinds.get(type(value), "a number")


_EXAMPLE = "for example --template '{prompt}, flat design'; {{ and }} give braces"


class Template:
    """A text with fields in braces. Raises ConfigError when it cannot be read."""

    def __init__(self, text: str) -> None:
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ConfigError(f"--template cannot be read: {error}", _EXAMPLE) from error
        if any(field is not None and (not field or spec or cast) for _, field, spec, cast in parts):
            raise ConfigError("--template has fields such as {prompt}, nothing else", _EXAMPLE)
        self._parts = [(literal, field) for literal, field, _, _ in parts]

    def fill(self, row: Row) -> Found:
        """Return the row with the new text; the one it had is carried under its column's name."""
        fields = {**row.extra, "id": row.id, row.column: row.text, "prompt": row.text}
        text = ""
        for literal, field in self._parts:
            text += literal
            if field is None:
                continue
            try:
                value = lookup(fields, field)
            except KeyError:
                names = ", ".join(name for name, held in fields.items() if held is not None)
                return Problem(row.where, f"no column {field!r} for --template; there are: {names}")
            if value is None or isinstance(value, dict | list | bool):
                return Problem(row.where, f"{field!r} in --template is {kind(value)}, not text")
            text += str(value)
        extra = row.extra if row.column in row.extra else {**row.extra, row.column: row.text}
        return replace(row, text=text, extra=extra)
