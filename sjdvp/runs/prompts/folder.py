"""Reader of a folder: each .txt file is one prompt, its name without .txt is the id (the shape of DPG-Bench)."""

from collections.abc import Iterator
from pathlib import Path

from sjdvp.runs.prompts.found import Blank, Found, Problem, Row
from sjdvp.runs.prompts.lines import split_lines


def read_folder(files: list[tuple[Path, bytes]]) -> Iterator[Found]:
    """Yield a prompt for each file that is not blank; line ends inside it become LF, those at its end are dropped."""
    for path, data in files:
        lines = list(split_lines([data]))
        text = "\n".join(line.text for line in lines).rstrip("\n")
        problem = next((f"line {line.number}: {line.problem}" for line in lines if line.problem), "")
        if problem or not _is_text(path.stem):
            yield Problem(ascii(path.name), problem or "the file's name is not valid UTF-8")
        elif text.strip():
            yield Row(path.name, text, path.stem)
        else:
            yield Blank()


def load_folder(folder: Path) -> list[tuple[Path, bytes]]:
    """Return the .txt files of `folder` with their bytes, in the order of their names."""
    return [(path, path.read_bytes()) for path in sorted(folder.glob("*.txt")) if path.is_file()]


def _is_text(name: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in name)
