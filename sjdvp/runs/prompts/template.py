"""`--template '{prompt}, flat design'`: prompts made of a text and of columns."""

import string
from dataclasses import replace

from sjdvp.errors import ConfigError
from sjdvp.runs.prompts.columns import kind, lookup
from sjdvp.runs.prompts.record import Found, Problem, Row

_EXAMPLE = "for example --template '{prompt}, flat design'; {{ and }} stand for braces"


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
