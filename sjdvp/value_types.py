"""The types that a setting may have: listed, named for people, and read from text."""

import re
import types
import typing
from typing import Any, Literal

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "nothing (null)",
}


def options_of(hint: Any) -> tuple[Any, ...]:
    """Return the types a setting may have; text comes last, since any text is text."""
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    options = typing.get_args(hint) if union else (hint,)
    return tuple(sorted(options, key=lambda option: option is str))


def from_text(option: Any, text: str) -> Any:
    """Read `text` as one of the types a setting may have; ValueError when it is not one."""
    if typing.get_origin(option) is Literal:
        words: dict[str, Any] = {str(word): word for word in typing.get_args(option)}
    elif option is bool:
        words = {"true": True, "false": False}
    elif option is type(None):
        words = {"null": None}
    elif option is str:
        return text
    elif re.fullmatch(r"[-+.\deE]+", text):  # no spaces, underscores, inf or nan
        return option(text)
    else:
        raise ValueError(text)
    if text not in words:
        raise ValueError(text)
    return words[text]


def describe(options: tuple[Any, ...]) -> str:
    """Say in words what a setting may be."""
    *others, last = (
        word
        for option in options
        for word in (
            typing.get_args(option) if typing.get_origin(option) is Literal else [_WORDS[option]]
        )
    )
    return f"{', '.join(others)} or {last}" if others else last
