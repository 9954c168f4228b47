"""Run folders with files that somebody has edited by hand: no command ends with a traceback."""

import contextlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sjdvp_cli.app import run
from tests.cli.conftest import StandIn

pytestmark = pytest.mark.process

RECORDS = [
    {"prompt": "a cat", "id": "a", "style": "x", "tag": "t", "include": []},
    {"prompt": "fail", "id": "b", "style": "y", "tag": "t", "include": [{"class": "dog"}]},
    {"prompt": "a dog", "style": "x", "tag": "t", "include": []},
]
PROMPTS, LOG = "prompts.jsonl", "log.shard-000-of-001.jsonl"
FILES = ("run.json", PROMPTS, LOG)

Path_ = tuple[str | int, ...]


def call(*arguments: object) -> tuple[int, str]:
    """Run a command line; gives its exit code and what it said to people. Only a bug raises."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        return run([str(argument) for argument in arguments]), err.getvalue()


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Iterator[Path]:
    """A folder with a failed image that was tried twice, made by a fake engine."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "prompts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setattr("sjdvp_cli.generate.open_generator", lambda config: nullcontext(StandIn()))
        patch.setattr("sjdvp_cli.generate.check_model", lambda config: None)
        for _ in range(2):
            assert generate(folder, folder / "out")[0] == 1
        yield folder


def generate(folder: Path, out: Path) -> tuple[int, str]:
    return call("generate", "--prompts", folder / "prompts.jsonl", "-n", 2, "-o", out)


def commands(folder: Path, out: Path) -> Iterator[tuple[int, str]]:
    yield call("check", out)
    yield call("report", out, "-o", out / "report.html")
    for layout in ("geneval", "t2i-compbench", "dpg", "hpsv2", "flat", "imagefolder"):
        yield call("export", out, "--layout", layout, "--to", out / layout)
    yield generate(folder, out)


def places(value: Any, above: Path_ = ()) -> Iterator[Path_]:
    """Every place in a JSON value, but the whole of it."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, one in inside:
        yield (*above, key)
        yield from places(one, (*above, key))


def edit(value: Any, place: Path_, action: str, new: Any) -> None:
    *above, key = place
    for step in above:
        value = value[step]
    if action == "delete":
        del value[key]
    elif action == "add" and isinstance(value, dict):
        value[f"{key}_"] = new
    else:
        value[key] = new


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.sampled_from([2**53, 2**70])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["0", "5", "\ud800", "../x.png", "images/000000_00.png", "ok", "\x1b[2J"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)


@given(
    st.data(),
    st.sampled_from(FILES),
    st.sampled_from(["replace", "replace", "delete", "add"]),
    VALUES,
)
@settings(deadline=None, max_examples=60)
def test_no_edit_of_a_value_gives_a_traceback(good, data, name, action, new):
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(shutil.copytree(good / "out", Path(temporary) / "out"))
        text = (out / name).read_text()
        parts = [text] if name == "run.json" else text.splitlines()
        line = data.draw(st.integers(0, len(parts) - 1))
        row = json.loads(parts[line])
        place = data.draw(st.sampled_from(list(places(row))))
        if place[-1] != "images_per_prompt" or new not in (2**53, 2**70):  # nobody has the time
            edit(row, place, action, new)
        parts[line] = json.dumps(row)
        (out / name).write_text("\n".join(parts) + "\n")
        assert {code for code, _ in commands(good, out)} <= {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "line", "place", "new", "words"),
    [
        (LOG, 2, ("index",), [1], "index must be a whole number, 0 or more, found [1]"),
        (LOG, 7, ("attempt",), "2", 'attempt must be a whole number, 0 or more, found "2"'),
        (LOG, 1, ("sample",), True, "sample must be a whole number, 0 or more, found true"),
        (LOG, 1, ("status",), "done", 'status must be ok, failed or tokens, found "done"'),
        (LOG, 3, ("error",), "none", 'error must be an object, found "none"'),
        (
            LOG,
            1,
            ("file",),
            "../secret.png",
            "file is '../secret.png', which is not an image of this folder",
        ),
        (PROMPTS, 1, ("index",), "0", 'index must be a whole number, 0 or more, found "0"'),
        (PROMPTS, 2, ("index",), 2, "index must be 1, found 2"),
        (PROMPTS, 2, ("extra",), [], "extra must be an object, found []"),
        (
            PROMPTS,
            3,
            ("mine",),
            1,
            "unknown key 'mine'; known keys: index, id, prompt, digest, extra",
        ),
        (PROMPTS, 1, ("prompt",), "\ud800", "not valid text: half of a surrogate pair"),
        ("run.json", None, ("seed",), "5", 'seed must be a whole number, 0 or more, found "5"'),
        (
            "run.json",
            None,
            ("pixel_settings",),
            [],
            "expected an object with pixel_settings.model.backbone, found []",
        ),
        (
            "run.json",
            None,
            ("pixel_settings", "decoder"),
            None,
            "expected an object with pixel_settings.decoder.preset, found null",
        ),
        (
            "run.json",
            None,
            ("wanted", 0, "limit"),
            "5",
            'limit must be a whole number, 0 or more, found "5"',
        ),
        (
            "run.json",
            None,
            ("wanted", 0, "indices"),
            [[1]],
            "indices must be pairs of rows, found [1]",
        ),
        ("run.json", None, ("wanted",), [], "wanted must not be empty"),
        ("run.json", None, ("revision",), 3, "revision must be text, found 3"),
    ],
)
def test_the_file_the_line_and_the_value_are_named(good, tmp_path, name, line, place, new, words):
    out = Path(shutil.copytree(good / "out", tmp_path / "out"))
    text = (out / name).read_text()
    parts = [text] if line is None else text.splitlines()
    row = json.loads(parts[(line or 1) - 1])
    edit(row, place, "replace", new)
    parts[(line or 1) - 1] = json.dumps(row)
    (out / name).write_text("\n".join(parts) + "\n")
    where = f"cannot read {name} in out: " if line is None else f"{name}: line {line}: "
    for code, said in commands(good, out):
        assert code == 2
        assert said.startswith("sjdvp: error: " + where)
        assert words in said.partition("\n")[0]
        assert re.search(r"\n  restore the (file|line), or (use another --out|delete it)", said)


def test_a_key_that_is_gone_is_named(good, tmp_path):
    for name, key in ((PROMPTS, "id"), (LOG, "sample")):
        out = Path(shutil.copytree(good / "out", tmp_path / name))
        lines = (out / name).read_text().splitlines()
        row = json.loads(lines[0])
        del row[key]
        (out / name).write_text("\n".join([json.dumps(row), *lines[1:]]) + "\n")
        assert {
            (code, f"{name}: line 1: the key {key} is missing\n" in said)
            for code, said in commands(good, out)
        } == {(2, True)}
