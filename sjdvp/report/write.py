"""The files of a report: one page that needs nothing else, Markdown, CSV."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sjdvp import __version__
from sjdvp.report.load import Run
from sjdvp.report.page import Page, make_page
from sjdvp.report.table import (
    FIGURES,
    GAINS,
    Line,
    as_csv,
    figure_cells,
    fixed,
    gain_cells,
    gain_text,
    percent,
)
from sjdvp.runs.atomic import storage_errors, write_atomic
from sjdvp.text import printable


def write_report(runs: Sequence[Run], lines: Sequence[Line], file: Path) -> list[Path]:
    """Write the page `file` (.html), and .md and .csv beside it; `lines` is the table of `runs`.

    Raises StorageError when the disk refuses.
    """
    page = make_page(runs, lines, __version__)
    texts = {".html": html(page), ".md": markdown(page), ".csv": as_csv(page.lines)}
    with storage_errors(file.parent.name):
        file.parent.mkdir(parents=True, exist_ok=True)
    paths = [file.with_suffix(suffix) for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomic(path, text.encode("utf-8", "backslashreplace"))
    return paths


def html(page: object, template: str = "page.html.j2") -> str:
    """Return a page: the report's, or that of another template.

    It may use its own style sheet and images inside it, nothing else (see its Content-Security-Policy).
    """
    environment = _environment(escaped=True)
    style = environment.get_template("page.css").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    return environment.get_template(template).render(
        page=page, style=Markup(style), style_digest=digest
    )


def markdown(page: Page) -> str:
    """Return the figures as Markdown."""
    return _environment(escaped=False).get_template("page.md.j2").render(page=page)


def _environment(*, escaped: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("sjdvp.report"),
        autoescape=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    words = {
        "fixed": fixed,
        "percent": percent,
        "gain": gain_text,
        "printable": printable,
        "md": _markdown_text,
    }
    environment.filters |= words
    environment.globals |= {
        "FIGURES": FIGURES, "GAINS": GAINS, "figure_cells": figure_cells, "gain_cells": gain_cells,
    }  # fmt: skip
    return environment


def _markdown_text(text: object) -> str:
    """Escape text so that it stands in a Markdown table as it is."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#&~" else c for c in printable(str(text)))
