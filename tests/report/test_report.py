"""The files of a report: against reviewed ones, and what must never be in them."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sjdvp.report.load import load_runs
from sjdvp.report.page import make_thumbs
from sjdvp.report.table import as_json, make_results
from tests.report.synthetic import GOLDEN, HOSTILE, make_run, written_report


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("comparison")
    failed = {"sjd": (0,)}
    return [
        make_run(root / name, name, 12, failed=failed.get(name, ()), texts=HOSTILE)
        for name in ("ar", "jacobi", "sjd", "same-noise")
    ]


@pytest.fixture(scope="module")
def written(folders, tmp_path_factory) -> dict[str, str]:
    target = tmp_path_factory.mktemp("report")
    return {
        path.suffix: path.read_text(encoding="utf-8")
        for path in written_report(folders, target / "deep" / "r.html")
    }


@pytest.mark.parametrize("suffix", [".md", ".csv"])
def test_as_reviewed(written, suffix):
    """Renew with: python -m tests.report.renew ."""
    assert written[suffix] == (GOLDEN / f"report{suffix}").read_text(encoding="utf-8")


def test_prompts_are_text(written):
    page = written[".html"]
    assert "<script" not in page
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;" in page
    assert "<img src=x" not in page
    assert "\u202e" not in page
    assert page.count("</style>") == 1
    assert "日本" in page


def test_nothing_comes_from_elsewhere(written):
    page = written[".html"]
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert " style=" not in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "url(" not in style
    assert "@import" not in style


def test_every_image_and_chart_has_words(written):
    page = written[".html"]
    images = re.findall("<img [^>]*>", page)
    assert len(images) == 4 * 12 - 1
    assert all(
        'alt="' in image and 'loading="lazy"' in image and 'width="32"' in image for image in images
    )
    charts = re.findall('<svg role="img".*?</svg>', page, re.DOTALL)
    assert charts
    assert all("<title>" in chart for chart in charts)


def test_what_the_page_says(written):
    page = written[".html"]
    assert "4 decoders on emoji" in page
    assert "12 prompts · 47 images · seed 1 · 2026-11-30" in page
    assert "lossless, greedy" in page
    assert "try --dtype fp32" in page
    assert page.count("= ar</span>") == 12  # same-noise gives the tokens of ar
    assert "Food &amp; Beverage" in page


def test_a_speedup_is_never_without_its_label(written):
    for row in re.findall('<tr><th.*?</tr>|<div class="variant.*?</div>', written[".html"]):
        assert "×" not in row or "lossless" in row
    assert all("lossless" in line for line in written[".md"].splitlines() if "×" in line)


def test_relaxed_decoders_are_marked(tmp_path):
    run = make_run(tmp_path / "run", "sjd", 4)
    log = next(run.glob("log.*"))
    log.write_text(log.read_text().replace('"lossless": true', '"lossless": false'))
    (line,) = make_results(load_runs([run]))
    assert (line.lossless, line.label) == (False, "not lossless")


def test_no_speed_up_between_runs_that_differ_otherwise(tmp_path):
    a, b = make_run(tmp_path / "a", "ar", 4), make_run(tmp_path / "b", "sjd", 4, seed=9)
    page, text, _ = (path.read_text() for path in written_report([a, b], tmp_path / "r.html"))
    assert "the run seed is 9, not 1" in page
    assert "the run seed is 9, not 1" in text
    assert "×" not in page + text


def test_tokens_per_forward_pass_are_the_same_in_table_and_chart(tmp_path):
    run = make_run(tmp_path / "run", "sjd", 4)
    (line,) = make_results(load_runs([run]))
    page = written_report([run], tmp_path / "r.html")[0].read_text()
    chart = page[page.index("<b>Tokens committed per forward pass</b>") :]
    assert (
        re.search(r'<span class="value">([\d.]+)</span>', chart)[1]
        == f"{line.metrics.tokens_per_nfe:.2f}"
    )


def test_a_lost_image_leaves_a_note(tmp_path):
    run = make_run(tmp_path / "run", "sjd", 4)
    (run / "images" / "000001.png").unlink()
    (run / "images" / "000002.png").write_bytes(b"no image")
    page = written_report([run], tmp_path / "r.html")[0].read_text()
    assert page.count("missing or broken") == 2
    assert page.count("<img ") == 2


def test_old_logs_have_no_heat_map(tmp_path):
    run = make_run(tmp_path / "run", "sjd", 4, stats={"accept_map": None, "accept_hist": []})
    assert "Acceptance map" not in written_report([run], tmp_path / "r.html")[0].read_text()


def test_an_empty_run_has_a_page(tmp_path):
    run = make_run(tmp_path / "run", "sjd", 2, failed=(0, 1))
    page, text, _ = (path.read_text() for path in written_report([run], tmp_path / "r.html"))
    assert "2 failed" in page
    assert "| sjd | lossless | – |" in text


def test_thumbs_keep_within_their_allowance(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", "sjd", 6, size=200)
    files = sorted((run / "images").iterdir())
    monkeypatch.setattr("sjdvp.report.page.PAGE_BYTES", 6 * 3000)
    small = make_thumbs(files)
    assert all(len(thumb.uri) <= 3000 and 48 <= thumb.width <= 200 for thumb in small.values())


def test_json_has_the_stable_keys(folders):
    runs = load_runs(folders)
    table = json.loads(json.dumps(as_json(runs, make_results(runs)), allow_nan=False))
    assert (list(table), table["prompts"], table["device"]) == (
        ["decoders", "prompts", "device"],
        12,
        "cpu",
    )
    stable = {
        "decoder",
        "lossless",
        "nfe",
        "tokens_per_nfe",
        "accept_rate",
        "step_ms",
        "latency_s",
        "speedup_nfe",
        "speedup_time",
    }
    for line in table["decoders"]:
        assert stable | {"ci95", "same_tokens_as_ar"} <= set(line)
    ar, _, sjd, same = table["decoders"]
    assert ar["speedup_nfe"]["ar"] is None
    low, high = sjd["ci95"]["nfe"]["ar"]
    assert low < sjd["speedup_nfe"]["ar"] < high
    assert same["same_tokens_as_ar"] == 1


@pytest.mark.process
def test_report_is_light():
    code = "import sys, sjdvp.report.write; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert not {"torch", "numpy", "transformers", "typer", "rich"} & set(loaded)
