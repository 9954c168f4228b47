"""README.md and docs/ tell the truth: commands run, links exist, keys and names are complete."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sjdvp as library
from sjdvp.presets import PRESETS
from sjdvp.runs.log import KEYS
from sjdvp_cli import app

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
EMBEDDED = Path(library.__file__).parent / "models" / "emoji" / "model" / "sjdvp.json"
with_embedded_model = pytest.mark.skipif(not EMBEDDED.exists(), reason="no embedded model here")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


SHELL = [line for block in blocks(README + REFERENCE, "sh") for line in block.splitlines()]
COMMANDS = [shlex.split(line, comments=True) for line in SHELL if line.startswith("sjdvp ")]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with the tests of a checkout, to write into."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)


def test_commands_run_in_order(sjdvp, generator, checkout):
    for _, *arguments in COMMANDS:
        if arguments[0] not in ("doctor", "eval"):  # they need weights
            result = sjdvp(*arguments)
            assert result.code == 0, (arguments, result.err)
    assert len(generator) >= 3


def test_every_command_is_shown():
    assert {words[1] for words in COMMANDS} == set(app.COMMANDS)


@with_embedded_model
def test_the_main_line_runs_with_the_embedded_model(sjdvp, checkout):
    """A few of its images: CI generates all of them with the whole line."""
    main = next(words for words in COMMANDS if "tests/data/first32.txt" in words)
    result = sjdvp(*main[1:], "--limit", "4")
    assert (result.code, result.err.splitlines()[-1]) == (0, "sjdvp: 4/4 ok")
    assert sjdvp("check", "imgs").code == 0
    assert sjdvp("doctor").code == 0


@with_embedded_model
def test_the_python_example_runs(tmp_path):
    (example,) = blocks(README, "python")
    found = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.fullmatch(r"\d+ forward passes for 256 tokens\n", found.stdout)
    assert (tmp_path / "apple.png").is_file()


def test_the_two_lines_are_those_of_ci():
    lines = [line for line in SHELL if line.startswith("python3 -m venv")]
    assert len(lines) == 2
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(line in ci for line in lines)


def test_the_yaml_example_is_a_profile(sjdvp, tmp_path):
    (example,) = blocks(REFERENCE, "yaml")
    (tmp_path / "mine.yaml").write_text(example)
    assert sjdvp("profiles", "check", tmp_path / "mine.yaml").code == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_every_log_key_is_explained():
    section = REFERENCE.split("## Log row")[1].split("\n## ")[0]
    assert [key for key in KEYS if key != "schema" and f"`{key}`" not in section] == []


@pytest.mark.parametrize("command", ["generate", "prompts", "decode", "export", "check", "show"])
def test_every_option_is_in_the_reference(command):
    names = {name for option in app.CommandTable()[command].params for name in option.opts}
    options = {name for name in names if name.startswith("--")} - {"--help"}
    assert {name for name in options if not re.search(rf"{name}(?![\w-])", REFERENCE)} == set()


def test_every_decoder_is_explained():
    page = (ROOT / "docs" / "decoders.md").read_text(encoding="utf-8")
    assert [name for name in PRESETS if f"`{name}`" not in page] == []


def test_every_profile_is_in_the_table_of_models():
    names = re.findall(
        r"^\| (`[^|]+) \|", README.split("## Models")[1].split("\n## ")[0], re.MULTILINE
    )
    shown = " ".join(names)
    for profile in (ROOT / "profiles").glob("*.yaml"):
        family = re.match(r"[a-z]+\d?", profile.stem)
        assert family is not None and family[0] in shown, profile.stem
