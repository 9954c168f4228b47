"""From bytes to numbered lines of text: LF, CRLF or CR end a line and nothing else does. Works on a pipe as its bytes come in."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # no UTF-8 text begins so


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end; `problem` says why the text is not to be trusted."""

    number: int  # from 1
    text: str
    problem: str = ""


def split_lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    """Yield the lines of a byte stream, without a BOM; a line is yielded as soon as its end has come. UTF-16 is one problem."""
    for number, raw in enumerate(_raw_lines(chunks), start=1):
        if number == 1 and raw.startswith(_UTF_16):
            yield Line(1, "", "looks like UTF-16, not UTF-8; convert it, e.g. iconv -f UTF-16 -t UTF-8 FILE > NEW")
            return
        yield _decode(number, raw.removeprefix(_BOM) if number == 1 else raw)


def _raw_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    # A CR at the end of a chunk ends its line at once; an LF that opens the next chunk then belongs to it.
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


def _decode(number: int, raw: bytes) -> Line:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"not valid UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1} of the line)"
        return Line(number, raw.decode("utf-8", errors="replace"), problem)
    return Line(number, text, "a NUL character" if "\0" in text else "")
