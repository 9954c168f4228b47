"""Readers of JSON: jsonl and geneval (a record a line), json (a list) and coco (captions). Unknown keys are carried along."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sjdvp.runs.prompts.found import Blank, Found, Problem, Row, at, find_column, missing_column
from sjdvp.runs.prompts.lines import Line
from sjdvp.runs.strict_json import load_json

GENEVAL_KEYS = ("tag", "include")
_OTHER_JSON = "a .json may also be one list of prompts, and a .jsonl has one object a line"


def read_jsonl(lines: Iterable[Line], column: str | None) -> Iterator[Found]:
    """Read one JSON object (or bare string) a line."""
    for line in lines:
        if line.problem:
            yield Problem(at(line.number), line.problem)
        elif not line.text.strip():
            yield Blank()
        else:
            value, problem = parse_json(line.text)
            yield Problem(at(line.number), problem) if problem else _row(at(line.number), value, column)


def read_geneval(lines: Iterable[Line], column: str | None) -> Iterator[Found]:
    """Read GenEval's metadata: jsonl whose records say what to look for."""
    for found in read_jsonl(lines, column):
        lacking = [key for key in GENEVAL_KEYS if isinstance(found, Row) and key not in found.extra]
        yield Problem(found.where, f"no key {lacking[0]!r}: not a GenEval record") if lacking and isinstance(found, Row) else found


def read_json(lines: Iterable[Line], column: str | None) -> Iterator[Found]:
    """Read one JSON list of strings or of objects."""
    value, problems = _whole(lines)
    yield from problems
    if isinstance(value, list):
        for number, entry in enumerate(value, start=1):
            yield _row(f"entry {number}", entry, column)
    elif not problems:
        yield Problem("file", f"must be a list of strings or objects, found {_kind(value)}")


def read_coco(lines: Iterable[Line], column: str | None) -> Iterator[Found]:
    """Read COCO captions: each annotation is a prompt (its caption), with the annotation's id."""
    value, problems = _whole(lines)
    yield from problems
    annotations = value.get("annotations") if isinstance(value, dict) else None
    if isinstance(annotations, list):
        for number, entry in enumerate(annotations, start=1):
            yield _row(f"annotation {number}", entry, column or "caption")
    elif not problems:
        yield Problem("file", f"{_kind(value)} without a list 'annotations': not COCO captions; {_OTHER_JSON}")


def _whole(lines: Iterable[Line]) -> tuple[Any, list[Problem]]:
    every = list(lines)
    problems = [Problem(at(line.number), line.problem) for line in every if line.problem]
    if problems:
        return None, problems
    value, problem = parse_json("\n".join(line.text for line in every))
    return value, [Problem("file", problem)] if problem else []


def parse_json(text: str) -> tuple[Any, str]:
    """Return the value and "", or None and what is wrong with the text. Strict: no key twice, finite numbers, valid Unicode."""
    try:
        value = load_json(text, _no_key_twice)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return None, "half of a surrogate pair (\\ud800 to \\udfff): not valid text"
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        return None, f"not valid JSON: {error.msg} at {line}column {error.colno}"
    except ValueError as error:
        return None, f"not valid JSON: {error}"
    return value, ""


def _row(where: str, entry: Any, column: str | None) -> Found:
    if isinstance(entry, str) and column is None:
        return _prompt(where, entry, None, {})
    if not isinstance(entry, dict):
        return Problem(where, f"must be an object with a prompt, found {_kind(entry)}")
    names = list(entry)
    position = find_column(names, column)
    if position is None:
        return Problem(where, missing_column(names, column))
    text, identity = entry[names[position]], entry.get("id")
    if not isinstance(text, str):
        return Problem(where, f"{names[position]!r} must be text, found {_kind(text)}")
    if not (identity is None or isinstance(identity, str | int)) or isinstance(identity, bool):
        return Problem(where, f"'id' must be text or a whole number, found {_kind(identity)}")
    extra = {key: value for key, value in entry.items() if key not in (names[position], "id")}
    return _prompt(where, text, None if identity is None else str(identity), extra)


def _prompt(where: str, text: str, identity: str | None, extra: dict[str, Any]) -> Found:
    if not text.strip():
        return Problem(where, "an empty prompt")
    if "\0" in text or "\0" in (identity or ""):
        return Problem(where, "a NUL character")
    return Row(where, text, identity, extra)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} stands twice in one object")
    return table
