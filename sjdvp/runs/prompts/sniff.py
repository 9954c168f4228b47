"""What a text is, by its first lines: the one rule for files, pipes and names without a suffix.

Text is taken for prompts line by line only when it is nothing else. What is ambiguous is refused
with the flag that decides. Reads as few lines as it can, so that a pipe starts at its first.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sjdvp.runs.prompts.columns import find_column, lookup
from sjdvp.runs.prompts.model import ReadOptions, is_blank
from sjdvp.runs.prompts.objects import GENEVAL_KEYS, parse_json
from sjdvp.runs.prompts.tables import DELIMITERS, named_delimiter, split_cells
from sjdvp.runs.prompts.text import Line

SUFFIXES = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
}
_NO_PROMPTS = {".md", ".markdown", ".html", ".htm", ".xml", ".py", ".ipynb", ".toml", ".ini"}
_LITERALLY = "--format txt takes each line unchanged"


@dataclass(frozen=True, slots=True)
class Refused:
    """What a text is when no reader takes it, and what may help."""

    what: str
    advice: str = _LITERALLY


_PAGES = (
    (
        r"version https://(git-lfs|hawser)\.github\.com/spec/",
        Refused("a pointer of Git LFS, not the file itself", "git lfs pull"),
    ),
    (r"/annex/objects/", Refused("a pointer of git-annex, not the file itself", "git annex get")),
    (
        r"(?i)<(!doctype|html|head|body|div|table|h1|p|img|svg|rss|error|prompts?|root|data|\?xml|!--)(\s[^>]*)?/?\??>"
        r"|<(!--|\?xml|!doctype\s)",
        Refused("an HTML or XML page, perhaps an error page", "download the raw file"),
    ),
    (
        r"(?i)(404: not found|entry not found)\s*$",
        Refused("an error message of a download", "download the file again"),
    ),
    (r"\{\\rtf", Refused("rich text (RTF)", "save it as plain text, UTF-8")),
    (r"HTTP/\d\S* \d{3}", Refused("the answer of a web server", "download the file again")),
    (
        r"#!/|```|//|/\*|WEBVTT\b|diff --git |--- a/|-----BEGIN |%!PS|\\(documentclass|begin)\b"
        r"|Traceback \(most recent|(INSERT INTO|CREATE TABLE) |data:\w+/[\w.+-]+;base64,"
        r"|\([ldt](p\d+)?$",
        Refused("the text of a program or of another document"),
    ),
)
_BROKEN = re.compile(
    r"""[\[{]\s*'|\[\s*[\[{]\s*"|\{\s*"[^"]*"\s*:|\{\s*(prompts?|captions?|text)\s*:"""
)
_QUOTED_LIST = re.compile(r"""\[\s*".*"[\s,\]]*[,\]]\s*$""")
_ASSIGNMENT = re.compile(r"""((const|let|var|export)\s+)?[\w.]+\s*=\s*[\[{]\s*(["'{[].*)?$""")
_IMAGE_FILE = re.compile(r"[^|,;\t]+\.(jpe?g|png|webp|gif|bmp|tiff?)(#\d+)?\s*([|,;\t])", re.I)
_HEADING = re.compile(r"#{1,6} \S")
_SECTION = re.compile(r"\[{1,2}[\w. -]+\]{1,2}")
_SETTING = re.compile(r"[\w.-]+\s*=\s*\S")
_MARKDOWN_RULE = re.compile(r"\|?[\s:-]*-[\s:|-]*\|[\s:|-]*")
_SUBTITLE = re.compile(r"\d+:\d\d:\d\d[,.]\d+ -->")
_ELEMENT = re.compile(r"<([a-zA-Z][\w:-]*)(\s[^<>]*)?>")
_ELEMENT_LINES = 8  # within which the first element of a page ends, or its first child

_YAML_LINES = 8  # that tell a mapping from text
_YAML_NAMES = re.compile(r"([Pp]rompts?|captions?|defaults|text):(\s|$)")
_YAML_SECTION = re.compile(r"""([^\s#\[{"'&*!|>%@`-][^:#]*|'[^']*'|"[^"]*"):\s*""")
_YAML_KEY = re.compile(  # as programs name things: no capitals, or with digits or underscores
    r"""([a-z0-9_][\w.-]*|[A-Z][\w-]*[\d_.][\w.-]*|'[^']*'|"[^"]*"):\s+\S"""
)
_YAML_BELOW = re.compile(r"\s+\S|-(\s|$)")

_ALONE = {"prompt", "prompts", "caption", "captions"}  # headers, and hardly prompts
_PROMPT_WORDS = {*_ALONE, "text", "description", "sentence", "comment", "question"}
_KEYS = (
    "id ids idx index image img file filename path url uid key name category categories style label"
    " class seed split type tag tags width height size n source topic challenge note dataset level"
    " model score number no num lang language negative title subject row version"
)
_KEY_WORDS = set(_KEYS.split())


class Ahead:
    """Lines with a way to see some of those to come."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = iter(lines)
        self._seen: deque[Line] = deque()

    def __iter__(self) -> Iterator[Line]:
        return self

    def __next__(self) -> Line:
        return self._seen.popleft() if self._seen else next(self._lines)

    def see(self, count: int | None = None) -> list[str]:
        """Return the first `count` lines (None: all) that are not blank; fewer at the end."""
        texts = [line.text for line in self._seen if not is_blank(line.text)]
        while (count is None or len(texts) < count) and (line := next(self._lines, None)):
            self._seen.append(line)
            texts += [] if is_blank(line.text) else [line.text]
        return texts if count is None else texts[:count]

    def blank_second(self) -> bool:
        """Say whether a blank line follows the first that is not."""
        self.see(2)
        shown = [is_blank(line.text) for line in self._seen]
        return False in shown and shown[shown.index(False) + 1 :][:1] == [True]


def sniff(ahead: Ahead, suffix: str, options: ReadOptions) -> str | Refused:
    """Return the name of the reader for a text, or why there is none.

    `suffix` (lower case) decides between readers where the text does not.
    """
    first = next(iter(ahead.see(1)), "").strip()
    for pattern, page in _PAGES:
        if re.match(pattern, first):
            return page
    if options.delimiter or not options.header:
        return "tsv" if SUFFIXES.get(suffix) == "tsv" else "csv"
    if first.startswith(("{", "[")) and (found_json := _json(first, suffix, ahead, options)):
        return found_json
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if suffix in _NO_PROMPTS:
        return Refused(f"a {suffix} file, not prompts")
    rules = (_document, _table, _yaml, _other)
    return next((found for rule in rules if (found := rule(first, ahead, options))), "txt")


def _json(first: str, suffix: str, ahead: Ahead, options: ReadOptions) -> str | None:
    """Tell one document from a record a line: jsonl starts at its first line where that is one."""
    record, problem = parse_json(first)
    if problem is None and isinstance(record, dict):
        if all(key in record for key in GENEVAL_KEYS):
            return "geneval"
        column = find_column(record, options.columns)
        is_record = column is not None and isinstance(lookup(record, column), str)
        by_line = (
            (is_record and suffix != ".json")
            or SUFFIXES.get(suffix) == "jsonl"
            or len(ahead.see(2)) > 1
        )
        return "jsonl" if by_line else "json"
    if problem is None:
        return "json"
    return _broken_json(first)


def _broken_json(first: str) -> str | None:
    """Tell JSON that goes on in the next line, or has a mistake, from text in brackets."""
    try:
        json.loads(first)
    except json.JSONDecodeError as error:
        if error.pos >= len(first):
            return "json"
    except (ValueError, RecursionError):
        return "json"
    else:  # what only Python's reader takes: NaN, a key twice
        return "jsonl" if first.startswith("{") else "json"
    if _BROKEN.match(first):
        return "jsonl"
    return "json" if _QUOTED_LIST.match(first) else None


def _document(first: str, ahead: Ahead, options: ReadOptions) -> Refused | None:
    """See by two lines what is a document of another kind."""
    element = _ELEMENT.match(first)
    if element and any(f"</{element[1]}>" in line for line in ahead.see(_ELEMENT_LINES)):
        return Refused("a piece of HTML or XML", "take the texts out of it")
    second = ahead.see(2)[-1].strip() if first.startswith(("[", "|")) or first.isdigit() else ""
    if _SECTION.fullmatch(first) and _SETTING.match(second):
        return Refused("sections of settings (INI or TOML)")
    if first.startswith("|") and _MARKDOWN_RULE.fullmatch(second):
        return Refused("a table in Markdown", "save it as CSV")
    if first.isdigit() and _SUBTITLE.match(second):
        return Refused("subtitles")
    return None


def _table(first: str, ahead: Ahead, options: ReadOptions) -> str | Refused | None:
    if named_delimiter(first):
        return "csv"
    if first.strip('"').casefold() in {*_ALONE, "text"} and len(ahead.see(2)) > 1:
        decide = (
            "--format tsv reads the lines below it unchanged, csv without quotes, txt all lines"
        )
        return Refused(f"its first line, {first!r}, seems to be the header of a table", decide)
    for delimiter in DELIMITERS:
        if found := _header(first, delimiter, ahead, options):
            return found
    second = ahead.see(2)[1:] if "\t" in first or _IMAGE_FILE.match(first) else []
    if refused := _image_and_text(first, second):
        return refused
    if second and 0 < first.count("\t") == second[0].strip().count("\t"):
        decide = "--format tsv --column NAME (or --no-header --column 2), or --format txt"
        return Refused(
            "a table, by its TABs, without a column named prompt, caption or text", decide
        )
    return None


def _image_and_text(first: str, second: list[str]) -> Refused | None:
    match = _IMAGE_FILE.match(first)
    if match is None or not all(map(_IMAGE_FILE.match, second)):
        return None
    delimiter = "'\\t'" if match[3] == "\t" else f"'{match[3]}'"
    columns = "--no-header --column 2 --id-column 1"
    return Refused(
        "a file name before each text: a table", f"--delimiter {delimiter} {columns}; {_LITERALLY}"
    )


def _header(first: str, delimiter: str, ahead: Ahead, options: ReadOptions) -> str | Refused | None:
    cells = [cell.strip() for cell in split_cells(first, delimiter)]
    names = [cell.casefold() for cell in cells]
    format = "tsv" if delimiter == "\t" else "csv"
    if len(names) < 2:
        return None
    if {*names} & _ALONE or {*cells} & {*options.columns}:
        return format
    prose = delimiter in ",;" and f"{delimiter} " in first
    known = _are_known(names) or (not prose and _are_names(names))
    if not known or not any(_has_cells(len(cells), row, delimiter) for row in ahead.see(2)[1:]):
        return None
    if prose and "_" not in first:
        advice = f"--format {format} if it is, else --format txt"
        return Refused(f"its first line, {first!r}, may be the header of a table", advice)
    return format


def _has_cells(count: int, row: str, delimiter: str) -> bool:
    return '"' in row or len(split_cells(row, delimiter)) == count  # quotes may hold line ends


def _are_known(names: list[str]) -> bool:
    """Say whether every word is one that headers are made of."""
    return all(_words(name) <= _PROMPT_WORDS | _KEY_WORDS for name in names)


def _are_names(names: list[str]) -> bool:
    """Say whether these are names as programs have them, half of them with a word of headers."""
    known = sum(bool(_words(name) & (_PROMPT_WORDS | _KEY_WORDS)) for name in names)
    keyed = any(_words(name) & (_KEY_WORDS | _ALONE) for name in names)
    plain = all(re.fullmatch(r"[^\W\d][\w.:-]*", name) for name in names)
    distinct = len({*names}) == len(names)
    return plain and keyed and distinct and 2 * known >= len(names)


def _words(name: str) -> set[str]:
    return set(re.split(r"[\s_.:-]+", name))


def _yaml(first: str, ahead: Ahead, options: ReadOptions) -> str | Refused | None:
    if re.match(r"(---|%YAML)(\s|$)", first):
        return "yaml"
    if re.match(r"-(\s|$)", first):
        return _bullets(ahead)
    return _mapping(ahead)


def _mapping(ahead: Ahead) -> str | Refused | None:
    """See a YAML mapping in the first lines; what is under a key proves it, `key: text` may not."""
    keys: list[str] = []
    above = ""
    for count in range(1, _YAML_LINES + 1):
        lines = ahead.see(count)
        line = lines[-1] if len(lines) == count else ""
        if not line or line.startswith("#"):
            continue
        below = bool(above) and _YAML_BELOW.match(line)
        if _YAML_NAMES.match(line) or (below and (line[0].isspace() or above.endswith(":"))):
            return "yaml"
        if not (_YAML_SECTION.fullmatch(line) or _YAML_KEY.match(line)):
            return None
        above = line.rstrip()
        keys.append(line.partition(":")[0])
    if len(keys) < 2 or len({*keys}) < len(keys):
        return None
    decide = "--format yaml reads texts by name, --format txt each line unchanged"
    return Refused("a name and a colon at each line: YAML, or prompts", decide)


def _bullets(ahead: Ahead) -> str | Refused | None:
    """See a list of YAML, when every line is an entry or goes on with one."""
    lines = ahead.see()
    if not all(line.startswith("#") or _YAML_BELOW.match(line) for line in lines):
        return None
    if any(re.search(r"\S\s+#", line) for line in lines):
        advice = "--format yaml (# begins a comment), or txt for each line unchanged"
        return Refused("a list of YAML, or bullets", advice)
    return "yaml"


def _other(first: str, ahead: Ahead, options: ReadOptions) -> Refused | None:
    if _HEADING.match(first) and ahead.blank_second():
        return Refused("a Markdown text: a heading and a blank line")
    if _ASSIGNMENT.match(first):
        return Refused("the text of a program")
    lines = ahead.see(2) if first.startswith('"') else []
    if len(lines) > 1 and all(_is_json_string(line.strip().removesuffix(",")) for line in lines):
        decide = "--format jsonl drops them, --format txt keeps them"
        return Refused("each line is in quotes", decide)
    return None


def _is_json_string(text: str) -> bool:
    value, problem = parse_json(text)
    return problem is None and isinstance(value, str)
