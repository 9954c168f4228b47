"""The files of a report: a self-contained HTML page, Markdown and CSV."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sjdvp import __version__
from sjdvp.report.load import Run
from sjdvp.report.page import ReportPage, make_page
from sjdvp.report.table import (
    METRIC_HEADINGS,
    SPEEDUP_HEADINGS,
    DecoderResult,
    as_csv,
    fixed,
    metric_cells,
    percent,
    speedup_cells,
)
from sjdvp.runs.atomic import storage_errors, write_atomic
from sjdvp.text import printable


def write_report(runs: Sequence[Run], results: Sequence[DecoderResult], file: Path) -> list[Path]:
    """Write the page `file` (.html), and .md and .csv beside it; `results` is the table of `runs`.

    Raises StorageError when the disk refuses.
    """
    page = make_page(runs, results, __version__)
    texts = {".html": html(page), ".md": markdown(page), ".csv": as_csv(page.results)}
    with storage_errors(file.parent.name):
        file.parent.mkdir(parents=True, exist_ok=True)
    paths = [file.with_suffix(suffix) for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomic(path, text.encode("utf-8", "backslashreplace"))
    return paths


def html(page: object, template: str = "page.html.j2") -> str:
    """Return a page made from a template.

    It may use its own style sheet and embedded images and nothing else, see its
    Content-Security-Policy.
    """
    environment = _environment(escaped=True)
    style = environment.get_template("page.css").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    return environment.get_template(template).render(
        page=page, style=Markup(style), style_digest=digest
    )


def markdown(page: ReportPage) -> str:
    """Return the tables as Markdown."""
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
        "printable": printable,
        "md": _markdown_text,
    }
    environment.filters |= words
    environment.globals |= {
        "METRIC_HEADINGS": METRIC_HEADINGS,
        "SPEEDUP_HEADINGS": SPEEDUP_HEADINGS,
        "metric_cells": metric_cells,
        "speedup_cells": speedup_cells,
    }
    return environment


def _markdown_text(text: object) -> str:
    """Escape text for a Markdown table."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#&~" else c for c in printable(str(text)))
