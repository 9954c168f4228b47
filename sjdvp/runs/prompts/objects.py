"""Readers of JSON and YAML: a record a line (jsonl, geneval), or one document (json, coco, yaml).

Strict: no key twice, finite numbers, valid Unicode. `shapes` knows the shapes of documents.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import yaml

from sjdvp.runs.jsonl import load_json
from sjdvp.runs.prompts.columns import kind, make_prompt, make_row
from sjdvp.runs.prompts.model import Blank, Found, Problem, ReadOptions, Row, at, is_blank
from sjdvp.runs.prompts.shapes import read_annotations, read_document
from sjdvp.runs.prompts.text import Line, unreadable

GENEVAL_KEYS = ("tag", "include")


def read_jsonl(lines: Iterable[Line], options: ReadOptions) -> Iterator[Found]:
    """Read one JSON object (or bare string) a line."""
    for line in lines:
        if line.problem:
            yield unreadable(line)
        elif is_blank(line.text):
            yield Blank()
        else:
            yield _json_line(line, options)


def read_geneval(lines: Iterable[Line], options: ReadOptions) -> Iterator[Found]:
    """Read GenEval's metadata: jsonl whose records say what the image must hold."""
    for found in read_jsonl(lines, options):
        lacking = [k for k in GENEVAL_KEYS if isinstance(found, Row) and k not in found.extra]
        if lacking and isinstance(found, Row):
            yield Problem(found.where, f"no key {lacking[0]!r}: not a GenEval record")
        else:
            yield found


def read_json(lines: Iterable[Line], options: ReadOptions) -> Iterator[Found]:
    """Read one JSON document."""
    return _read_whole(lines, options, read_document)


def read_coco(lines: Iterable[Line], options: ReadOptions) -> Iterator[Found]:
    """Read COCO captions and nothing else."""
    return _read_whole(lines, options, read_annotations)


def _read_whole(
    lines: Iterable[Line],
    options: ReadOptions,
    read: Callable[[Any, ReadOptions], Iterator[Found]],
) -> Iterator[Found]:
    text, problems = _whole(lines)
    yield from problems
    if not problems and not is_blank(text):
        value, problem = parse_json(text)
        yield from [problem] if problem else read(value, options)


def read_yaml(lines: Iterable[Line], options: ReadOptions) -> Iterator[Found]:
    """Read one YAML document, each scalar as text: 007, no and 1e5 are not converted."""
    text, problems = _whole(lines)
    yield from problems
    if problems:
        return
    try:
        documents = list(yaml.load_all(text, _Literal))
    except yaml.MarkedYAMLError as error:
        place = f"line {error.problem_mark.line + 1}" if error.problem_mark else "file"
        yield Problem(place, f"not valid YAML: {error.problem}", _NO_YAML)
    except (yaml.YAMLError, RecursionError) as error:
        message = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        yield Problem("file", f"not valid YAML: {message.splitlines()[0]}", _NO_YAML)
    else:
        if len(documents) == 1:
            yield from read_document(documents[0], options)
        elif documents:
            yield Problem("file", f"{len(documents)} YAML documents, not one", _NO_YAML)


_WRITE_JSON = "mend it there, or write the file with a JSON library"
_NO_YAML = "--format txt takes each line unchanged"


def parse_json(text: str) -> tuple[Any, Problem | None]:
    """Return the value, or None and what is wrong with the text."""
    try:
        value = load_json(text, _no_key_twice)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        message = "half of a surrogate pair (\\ud800 to \\udfff): not valid text"
        return None, Problem("file", message)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        message = f"not valid JSON: {error.msg} at {line}column {error.colno}"
        return None, Problem("file", message, _advice(text, error))
    except ValueError as error:
        reason = str(error)
        if "integer string conversion" in reason:
            reason = "a number of thousands of digits"
        return None, Problem("file", f"not valid JSON: {reason}", _WRITE_JSON)
    return value, None


def _advice(text: str, error: json.JSONDecodeError) -> str:
    if error.msg == "Extra data" and text[error.pos : error.pos + 1] in ("{", "["):
        return "several values one after another: jq -c . FILE > NEW.jsonl"
    if text[error.pos : error.pos + 1] == "'":
        return "JSON has double quotes; Python's print has single ones, json.dumps writes JSON"
    before, after = text[: error.pos].rstrip(), text[error.pos :].lstrip()
    if before.endswith(",") and after[:1] in ("]", "}"):
        return "JSON has no comma before ] or }: delete it"
    if after.startswith(("//", "/*", "#")):
        return "JSON has no comments: delete them"
    return _WRITE_JSON


def _json_line(line: Line, options: ReadOptions) -> Found:
    value, problem = parse_json(line.text)
    where = at(line.number)
    if problem:
        return Problem(where, problem.message, problem.advice)
    if isinstance(value, str) and not (options.columns or options.id_column):
        return make_prompt(where, value, None, {})
    if isinstance(value, dict):
        return make_row(where, value, options)
    return Problem(where, f"must be an object with a prompt, found {kind(value)}")


def _whole(lines: Iterable[Line]) -> tuple[str, list[Problem]]:
    every = list(lines)
    problems = [unreadable(line) for line in every if line.problem]
    return "\n".join(line.text for line in every), problems


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} appears twice in one object")
    return table


class _Literal(yaml.BaseLoader):
    """YAML whose scalars stay text. No aliases: a short file could expand to a huge one.

    The line end after the text of a block (`|`, `>`) does not belong to a prompt.
    """

    def construct_scalar(self, node: Any) -> str:
        text = str(super().construct_scalar(node))
        return text.rstrip("\n") if node.style in ("|", ">") else text

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, "anchors and aliases are not read", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        table = super().construct_mapping(node, deep=deep)
        if len(table) < len(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "a key appears twice in one mapping", node.start_mark
            )
        return table
