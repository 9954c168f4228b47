"""Readers of text that comes line by line: txt and tsv (literal) and csv (RFC 4180). Cells are always text."""

import csv
from collections.abc import Iterable, Iterator

from sjdvp.runs.prompts.found import Blank, Found, Problem, Row, at, find_column, missing_column
from sjdvp.runs.prompts.lines import Line

_MOST_CHARACTERS = 2**31 - 1  # in a cell of csv, which Python limits to 131,072: as much as C can count everywhere


def read_txt(lines: Iterable[Line], column: str | None) -> Iterator[Found]:
    """Read one prompt a line, as it stands: no quoting, no comments, no stripping."""
    if column is not None:
        yield Problem("file", f"txt has no columns, so no column {column!r}")
    for line in lines:
        if line.problem:
            yield Problem(at(line.number), line.problem)
        elif line.text.strip():
            yield Row(at(line.number), line.text)
        else:
            yield Blank()


def read_tsv(lines: Iterable[Line], column: str | None) -> Iterator[Found]:
    """Read a header, then literal cells between TABs."""
    header: _Header | None = None
    for line in lines:
        if line.problem:
            yield Problem(at(line.number), line.problem)
        elif not line.text.strip():
            yield Blank()
        elif header is None:
            header = _Header(line.text.split("\t"), column)
            yield from header.problems(line.number)
            if header.prompt is None:
                return
        else:
            yield header.row(line.number, line.text.split("\t"))


def read_csv(lines: Iterable[Line], column: str | None) -> Iterator[Found]:
    """Read a header, then comma-separated cells, quoted as in RFC 4180; a line end in a quoted cell becomes LF."""
    source = _CsvLines(lines)
    header: _Header | None = None
    for first, cells in _csv_rows(source):
        yield from source.problems()
        if isinstance(cells, csv.Error):
            yield Problem(at(first), _explain(cells))
        elif not any(cell.strip() for cell in cells):
            yield from [Blank()] * (source.number - first + 1)
        elif header is None:
            header = _Header(cells, column)
            yield from header.problems(first)
            if header.prompt is None:
                return
        else:
            yield header.row(first, cells)


def _csv_rows(source: "_CsvLines") -> Iterator[tuple[int, list[str] | csv.Error]]:
    csv.field_size_limit(_MOST_CHARACTERS)
    rows = csv.reader(source, strict=True)
    while True:
        first = source.number + 1
        try:
            yield first, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield first, error


class _CsvLines:
    """Lines as `csv.reader` wants them; keeps count, and puts what is wrong with a line aside."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.number = 0
        self._lines = iter(lines)
        self._problems: list[Problem] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number = line.number
        if line.problem:
            self._problems.append(Problem(at(line.number), line.problem))
        return line.text + "\n"

    def problems(self) -> list[Problem]:
        """Hand over what was wrong with the lines since the last call."""
        found, self._problems = self._problems, []
        return found


class _Header:
    """The first row of a table: where the prompt and the id are, and what the other columns are called."""

    def __init__(self, names: list[str], column: str | None) -> None:
        self.names = names
        self.column = column
        self.prompt = find_column(names, column)
        self.id = names.index("id") if "id" in names and names.index("id") != self.prompt else None

    def problems(self, number: int) -> Iterator[Problem]:
        if self.prompt is None:
            hint = " (a file with one prompt a line and no header is --format txt)" if self.column is None else ""
            yield Problem(at(number), missing_column(self.names, self.column) + hint)
        twice = sorted({name for name in self.names if name and self.names.count(name) > 1})
        if twice:
            yield Problem(at(number), f"two columns have the same name: {', '.join(map(repr, twice))}")

    def row(self, number: int, cells: list[str]) -> Found:
        assert self.prompt is not None
        if len(cells) > len(self.names):
            return Problem(at(number), f"{len(cells)} cells under a header of {len(self.names)}{self._one_column_hint()}")
        if len(cells) <= self.prompt or not cells[self.prompt].strip():
            return Problem(at(number), f"no prompt in column {self.names[self.prompt]!r}")
        own = (self.prompt, self.id)
        extra = {name: cell for i, (name, cell) in enumerate(zip(self.names, cells, strict=False)) if i not in own}
        identity = cells[self.id] if self.id is not None and self.id < len(cells) else None
        return Row(at(number), cells[self.prompt], identity or None, extra)

    def _one_column_hint(self) -> str:
        return "; if each line is one prompt, use --format tsv" if len(self.names) == 1 else ""


def _explain(error: csv.Error) -> str:
    if "unexpected end of data" in str(error):
        return "a quote opens a cell here and is never closed"
    return f"not RFC 4180: {error}"
