"""Readers of tables: tsv (literal cells), csv (RFC 4180) and Parquet (through pyarrow).

Cells of tsv and csv are always text.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from sjdvp.runs.prompts.columns import find_column, make_row, missing_column
from sjdvp.runs.prompts.model import (
    Blank,
    Found,
    LeftOut,
    Problem,
    ReadOptions,
    at,
    is_blank,
    names_of,
)
from sjdvp.runs.prompts.text import Line, unreadable

DELIMITERS = (",", ";", "\t", "|")
_SEPARATOR = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # how Excel names the delimiter
_MOST_CHARACTERS = 2**31 - 1  # in a cell, which Python limits to 131,072: as much as C can count
_UNDO_QUOTES = "--format csv --delimiter '\\t' removes quotes, --format tsv takes cells unchanged"
_PLAIN = "a file with one prompt a line and no header is --format txt"
_NO_HEADER = "a table without a header: --no-header --column 2 (or another)"

Cells = tuple[int, list[str]]  # line number, cells


def read_tsv(lines: Iterable[Line], options: ReadOptions) -> Iterator[Found]:
    """Read literal cells between TABs (or another delimiter): no quoting."""
    return _rows(_literal(lines, options), options)


def read_csv(lines: Iterable[Line], options: ReadOptions) -> Iterator[Found]:
    """Read cells quoted as in RFC 4180; a line end in a quoted cell becomes LF.

    The delimiter is what --delimiter or a first line `sep=;` names, else what the header shows.
    """
    return _rows(_quoted(lines, options), options)


def named_delimiter(line: str) -> str | None:
    """Return the delimiter that a line such as `sep=;` names."""
    match = _SEPARATOR.fullmatch(line)
    return match and match[1]


def split_cells(line: str, delimiter: str) -> list[str]:
    """Split one line, with quotes read as in csv; what is no csv is one cell."""
    try:
        spaced = _is_spaced(line, delimiter)
        rows = list(csv.reader([line], delimiter=delimiter, skipinitialspace=spaced, strict=True))
    except csv.Error:
        return [line]
    return rows[0] if rows else []


def delimiter_of(line: str, options: ReadOptions) -> str:
    """Return what separates the cells of a table's first line, a header or not."""
    if not options.header:
        places = {line.index(d): d for d in DELIMITERS if d in line}
        return places[min(places)] if places else ","
    headers = {d: dict.fromkeys(split_cells(line, d)) for d in DELIMITERS}
    return next((d for d in DELIMITERS if find_column(headers[d], options.columns)), ",")


def _literal(lines: Iterable[Line], options: ReadOptions) -> Iterator[Cells | Found]:
    delimiter = options.delimiter or "\t"
    columns = 0
    for line in lines:
        if line.problem:
            yield unreadable(line)
        elif is_blank(line.text):
            yield Blank()
        else:
            cells = line.text.split(delimiter)
            columns = columns or len(cells)
            if options.format == "auto" and _looks_quoted(cells, columns):
                yield Problem(at(line.number), "a cell is quoted as in csv", _UNDO_QUOTES)
            yield line.number, cells


def _looks_quoted(cells: list[str], columns: int) -> bool:
    """Say whether a cell is as pandas and Excel write one with quotes or line ends inside."""
    last = cells[-1]
    goes_on = len(cells) < columns and last.startswith('"') and last.count('"') % 2 == 1
    return goes_on or any(
        f'"{cell[1:-1]}"' == cell and '""' in cell[1:-1] and '"' not in cell[1:-1].replace('""', "")
        for cell in cells
    )


def _quoted(lines: Iterable[Line], options: ReadOptions) -> Iterator[Cells | Found]:
    source = _CsvLines(lines)
    yield from source.until_text(options)
    csv.field_size_limit(_MOST_CHARACTERS)
    rows = csv.reader(
        source, delimiter=source.delimiter, skipinitialspace=source.spaced, strict=True
    )
    while True:
        first = source.number + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield from source.problems()
            yield Problem(at(first), _explain(error))
            continue
        yield from source.problems()
        if any(not is_blank(cell) for cell in cells):
            yield first, cells
        else:
            yield from [Blank()] * (source.number - first + 1)


class _CsvLines:
    """Lines as `csv.reader` wants them; keeps count, and puts what is wrong with a line aside."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.number = 0
        self.delimiter = ","
        self.spaced = False  # a space after each delimiter of the first row: `a, "b, c"`
        self._lines = iter(lines)
        self._waiting: list[Line] = []
        self._problems: list[Problem] = []

    def until_text(self, options: ReadOptions) -> Iterator[Blank]:
        """Go to the first row, and see from it how the file is written."""
        named = None
        for line in self._lines:
            separator = named_delimiter(line.text)
            named = named or separator
            if line.problem or not (separator or is_blank(line.text)):
                self._waiting = [line]
                break
            self.number = line.number
            if separator is None:
                yield Blank()
        first = self._waiting[0].text if self._waiting else ""
        self.delimiter = options.delimiter or named or delimiter_of(first, options)
        self.spaced = _is_spaced(first, self.delimiter)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._waiting.pop() if self._waiting else next(self._lines)
        self.number = line.number
        if line.problem:
            self._problems.append(unreadable(line))
        return line.text + "\n"

    def problems(self) -> list[Problem]:
        """Hand over what was wrong with the lines since the last call."""
        found, self._problems = self._problems, []
        return found


def _is_spaced(line: str, delimiter: str) -> bool:
    plain = re.sub(r'"[^"]*"', '""', line)  # delimiters in quotes are text
    return delimiter in plain and plain.count(delimiter) == plain.count(f"{delimiter} ")


def _rows(rows: Iterable[Cells | Found], options: ReadOptions) -> Iterator[Found]:
    names: list[str] = []
    for row in rows:
        if not isinstance(row, tuple):
            yield row
            continue
        number, cells = row
        if names:
            yield _row(number, names, cells, options)
            continue
        names = cells if options.header else _numbers(cells, options)
        problems = list(_wrong_names(number, names, cells, options))
        yield from problems
        if problems:
            return
        if not options.header:
            yield _row(number, names, cells, options)


def _wrong_names(
    number: int, names: list[str], cells: list[str], options: ReadOptions
) -> Iterator[Problem]:
    header = dict.fromkeys(names)
    if not options.header and not options.columns and len(names) > 1:
        columns = ", ".join(f"{n} {cell!r}" for n, cell in zip(names, cells, strict=True))
        yield Problem(at(number), f"which column is the prompt? {columns}", "--column N")
    elif find_column(header, options.columns) is None:
        problem = missing_column(at(number), header, options)
        advice = f"{problem.advice}; {_NO_HEADER}; {_PLAIN}" if options.header else problem.advice
        yield Problem(problem.where, problem.message, advice)
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        same = ", ".join(map(repr, twice))
        yield Problem(at(number), f"two columns have the same name: {same}")


def _row(number: int, names: list[str], cells: list[str], options: ReadOptions) -> Found:
    if len(cells) > len(names):
        first = "header" if options.header else "first row"
        many = f"{len(cells)} cells under a {first} of {len(names)}"
        hint = "if each line is one prompt, use --format tsv" if len(names) == 1 else ""
        return Problem(at(number), many, hint)
    record = dict(zip(names, cells, strict=False))
    if len(cells) < len(names):
        column = find_column(dict.fromkeys(names), options.columns)
        record = {**({column: ""} if column else {}), **record}  # a short row may end before it
    return make_row(at(number), record, options)


def _numbers(cells: list[str], options: ReadOptions) -> list[str]:
    alone = len(cells) == 1 and not options.columns
    return ["prompt"] if alone else [str(number) for number in range(1, len(cells) + 1)]


def _explain(error: csv.Error) -> str:
    if "unexpected end of data" in str(error):
        return "a quote opens a cell here and is never closed"
    return f"not RFC 4180: {error}"


_NO_PYARROW = (
    "in the checkout of sjdvp: pip install '.[parquet]'; "
    "or with pandas: read_parquet(FILE).to_csv(NEW)"
)


def read_parquet(chunks: Iterable[bytes], options: ReadOptions) -> Iterator[Found]:
    """Read the rows of a Parquet file; columns that hold bytes (images, say) are left out."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        yield Problem("file", "Parquet, which needs pyarrow", _NO_PYARROW)
        return
    try:
        file = parquet.ParquetFile(io.BytesIO(b"".join(chunks)))
        schema = file.schema_arrow
        names = [field.name for field in schema if "binary" not in str(field.type)]
        left = [repr(name) for name in schema.names if name not in names]
        yield from [LeftOut(f"not read, because they are binary: {names_of(left)}")] if left else []
        number = 0
        for batch in file.iter_batches(columns=names):
            for record in batch.to_pylist():
                number += 1
                yield make_row(f"row {number}", _plain(record), options)
    except arrow.ArrowException as error:
        yield Problem("file", f"damaged Parquet: {str(error).splitlines()[0]}")


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: dates and decimals become text, NaN null."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
