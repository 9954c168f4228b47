"""From bytes to numbered lines of text: LF, CRLF or CR end a line and nothing else does.

Works on a pipe as its bytes come in. Also the reader of txt, which takes lines unchanged.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sjdvp.runs.prompts.model import Blank, Found, Problem, ReadOptions, Row, at, is_blank

_BOM = "\ufeff"  # as text; within a file it is what `cat` of several files leaves
_TWO_FILES = re.compile(rf"[^\s{_BOM}]{_BOM}+[^\s{_BOM}]")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # no UTF-8 text begins so
_UTF_32 = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32"}
FROM_WINDOWS = (
    "a file from Windows: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW "
    "(from elsewhere: GB18030, SHIFT_JIS, KOI8-R)"
)
_NOT_TEXT = "a binary file, or UTF-16: iconv -f UTF-16LE -t UTF-8 FILE > NEW"
_NUL = "a NUL character"


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end; `problem` says why the text is not to be trusted."""

    number: int  # from 1
    text: str
    problem: str = ""


def split_lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    """Yield the lines of a byte stream as soon as their ends have come, without a leading BOM.

    UTF-16 is one problem.
    """
    for number, raw in enumerate(_raw_lines(chunks), start=1):
        encoding = _utf_16(raw) if number == 1 else ""
        if encoding:
            advice = f"convert it, e.g. iconv -f {encoding} -t UTF-8 FILE > NEW"
            yield Line(1, "", f"seems to be {encoding[:6]}, not UTF-8; {advice}")
            return
        yield _decode(number, raw)


def read_txt(lines: Iterable[Line], options: ReadOptions) -> Iterator[Found]:
    """Read one prompt per line, unchanged: no quoting, no comments, no stripping."""
    for name in (*options.columns, *filter(None, [options.id_column])):
        advice = "a table: --delimiter ',' (or another), with --no-header where it has none"
        yield Problem("file", f"txt has no columns, so there is no column {name!r}", advice)
    for line in lines:
        if line.problem:
            yield unreadable(line)
        elif is_blank(line.text):
            yield Blank()
        elif _BOM in line.text and _TWO_FILES.search(line.text):
            message = "a byte order mark (U+FEFF) between two words"
            advice = "two files joined without a line end? put one there"
            yield Problem(at(line.number), message, advice)
        else:
            yield Row(at(line.number), line.text.replace(_BOM, ""))


def unreadable(line: Line) -> Problem:
    """Return what is wrong with a line that is not text, with the command that may help."""
    advice = {_NUL: _NOT_TEXT}.get(line.problem, "")
    if line.problem.startswith("not valid UTF-8"):
        advice = FROM_WINDOWS
    return Problem(at(line.number), line.problem, advice)


def _raw_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    # A CR at the end of a chunk ends its line at once; an LF that opens the next chunk then
    # belongs to it.
    rest, swallow_lf = b"", False
    for chunk in chunks:
        fresh = chunk.removeprefix(b"\n") if swallow_lf else chunk
        swallow_lf = chunk.endswith(b"\r")
        *whole, rest = (rest + fresh).splitlines(keepends=True) or [b""]
        if rest.endswith((b"\r", b"\n")):
            whole, rest = [*whole, rest], b""
        for line in whole:
            yield line.rstrip(b"\r\n")
    if rest:
        yield rest


def _utf_16(first: bytes) -> str:
    if first[:4] in _UTF_32 or first[1:4] == b"\0\0\0":
        return _UTF_32.get(first[:4], "UTF-32LE")
    if first.startswith(_UTF_16):
        return "UTF-16"
    if first[1:4:2] == b"\0\0" and b"\0" not in first[0:4:2]:
        return "UTF-16LE"
    return "UTF-16BE" if first[0:3:2] == b"\0\0" and b"\0" not in first[1:4:2] else ""


def _decode(number: int, raw: bytes) -> Line:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"byte 0x{raw[error.start]:02x} at column {error.start + 1} of the line"
        return Line(number, raw.decode("utf-8", errors="replace"), f"not valid UTF-8 ({where})")
    return Line(number, text.lstrip(_BOM), _NUL if "\0" in text else "")
