"""What every test shares: one thread, because two on a busy machine wait for each other longer than
they work; a cache folder.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# The same examples each time, so that what has passed once passes; `--hypothesis-profile=default`
# tries others.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


NOT_FAST = {"slow", "process", "browser", "cluster", "gpu", "weights"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as fast what no other marker says is slow, before `-m` selects."""
    for item in items:
        if not NOT_FAST & {marker.name for marker in item.iter_markers()}:
            item.add_marker("fast")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Keep what the tests measure and compute out of the user's own cache."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def ten_prompts(tmp_path) -> Path:
    """A prompt file of ten prompts, none of which fails."""
    path = tmp_path / "good.txt"
    path.write_text("".join(f"prompt {i}\n" for i in range(10)), encoding="utf-8")
    return path
