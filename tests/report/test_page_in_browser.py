"""The page in a real browser: no error, quickly shown, no horizontal scrolling, nothing fetched."""

import pytest

from tests.report.chromium import BINARY, browser
from tests.report.synthetic import HOSTILE, make_run, written_report

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine (Debian: chromium)"),
]

LARGE = 1632  # images of PartiPrompts


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    root = tmp_path_factory.mktemp("large")
    run = make_run(root / "run", "sjd", LARGE, size=192, failed=(5,), texts=HOSTILE)
    return written_report([run], root / "report.html")[0]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_large_page(tab, large, width, dark):
    assert large.stat().st_size <= 15_000_000
    assert any(_opens_quickly(tab, large, width, dark) for _ in range(3))
    assert tab.complaints == []
    assert {url.partition(":")[0] for url in tab.requested} <= {"file", "data"}
    assert [url for url in tab.requested if url.startswith("file:")][-1] == large.as_uri()
    assert tab.run("document.documentElement.scrollWidth") == width
    assert tab.run("document.images.length") == LARGE - 1
    background = tab.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(19, 20, 22)" if dark else "rgb(251, 250, 248)")


def _opens_quickly(tab, page, width, dark) -> bool:
    """The page is shown within 2 s, or later in proportion if a single word takes over 0.1 s."""
    tab.open("data:text/html,word", width, dark=dark)
    slowness = max(1, tab.first_paint_ms() / 100)
    tab.requested.clear()
    tab.open(page.as_uri(), width, dark=dark)
    return tab.first_paint_ms() < 2000 * slowness


def test_images_are_shown_once_they_come_into_view(tab, large):
    tab.open(large.as_uri())
    assert tab.run(
        "(async () => { const i = document.images[document.images.length - 1]; "
        "i.scrollIntoView(); await i.decode();"
        " return i.naturalWidth > 0 })()"
    )


def test_side_by_side(tab, tmp_path):
    runs = [make_run(tmp_path / name, name, 6, texts=HOSTILE) for name in ("ar", "sjd", "sjdvp")]
    page = written_report(runs, tmp_path / "report.html")[0]
    tab.open(page.as_uri(), 390)
    assert tab.complaints == []
    assert tab.run("document.documentElement.scrollWidth") == 390
    tops = (
        "[...document.querySelectorAll('article:first-child img')]"
        ".map(i => Math.round(i.getBoundingClientRect().top))"
    )
    assert (
        len(set(tab.run(tops))) == 1
    )  # three images of one prompt beside each other, on a phone too
