"""How a prompt file is to be read: what the flags of the command line say."""

from dataclasses import dataclass

from sjdvp.errors import ConfigError

_FORMATS = "auto txt tsv csv jsonl json coco geneval yaml parquet dir"
FORMATS = tuple(_FORMATS.split())
_TABLES = ("auto", "csv", "tsv", "dir")
_SPELLED = {"\\t": "\t", "tab": "\t"}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read. Raises ConfigError for options that contradict each other."""

    format: str = "auto"
    columns: tuple[str, ...] = ()  # the first of them that a file has holds the prompt; A.B: inside
    delimiter: str = ""  # of csv and tsv; "": by the first line
    header: bool = True  # False: the columns of a table are called 1, 2, 3 ...
    id_column: str = ""  # "": the column `id`, where there is one
    ids: bool = True  # False: prompts have no id, and a column `id` is carried like others
    skip_empty: bool = False  # rows without a prompt are left out, not an error
    ignore_columns: bool = False  # seed, n, size and so on are plain columns
    template: str = ""  # '{prompt}, flat design': what to make of the prompt and other columns

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"unknown format {self.format!r}", f"known are: {', '.join(FORMATS)}")
        object.__setattr__(self, "delimiter", _SPELLED.get(self.delimiter, self.delimiter))
        if len(self.delimiter) > 1 or self.delimiter in ("\n", "\r", '"'):
            found = f"found {self.delimiter!r}"
            raise ConfigError(f"--delimiter must be one character, {found}", "tab is \\t")
        if (self.delimiter or not self.header) and self.format not in _TABLES:
            flag = "--delimiter" if self.delimiter else "--no-header"
            raise ConfigError(f"{flag} is for tables", "use --format csv or tsv, or leave it out")
        if self.id_column and not self.ids:
            raise ConfigError("--id-column and --no-ids contradict each other", "give one of them")
