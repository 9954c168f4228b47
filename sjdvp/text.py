"""Text for terminals and logs: safe, short, with the right plural. Imports no torch."""

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # inside words and emoji; they move no cursor and reorder nothing


def printable(text: str) -> str:
    r"""Return `text` with control, bidirectional and line-breaking characters as \x1b or \u2028."""
    return "".join(
        c if unicodedata.category(c) not in _HIDDEN or c in _JOINERS else _escape(c) for c in text
    )


def shortened(text: str, most: int = 80) -> str:
    """Return `text` cut to `most` characters, with an ellipsis at the end where it is cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 image`, `2 images`; `plural` is for an irregular noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
