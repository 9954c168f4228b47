"""README.md tells the truth: its commands run, its files exist, its set-up lines are those of CI."""

import re
import shlex
from pathlib import Path

import pytest

import sjdvp as library
from sjdvp_cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]
COMMANDS = [shlex.split(line, comments=True) for line in SHELL if line.startswith("sjdvp ")]
EMBEDDED = Path(library.__file__).parent / "models" / "emoji" / "model" / "sjdvp.json"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that looks like a checkout, to write into."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)


def test_commands_run_in_order(sjdvp, generator, checkout):
    for _, *arguments in COMMANDS:
        if arguments[0] not in ("doctor", "eval"):  # they look for weights
            result = sjdvp(*arguments)
            assert result.code == 0, (arguments, result.err)
    assert len(generator) >= 3


def test_every_command_is_shown():
    assert {words[1] for words in COMMANDS} == set(app.COMMANDS)


@pytest.mark.skipif(not EMBEDDED.exists(), reason="the embedded model is not in this checkout")
def test_main_line_draws_with_the_embedded_model(sjdvp, checkout):
    """A few of its images: CI draws all of them by the line as it stands."""
    result = sjdvp(*COMMANDS[0][1:], "--limit", "4")
    assert (result.code, result.err.splitlines()[-1]) == (0, "sjdvp: 4/4 ok")
    assert sjdvp("check", "imgs").code == 0
    assert sjdvp("doctor").code == 0


def test_set_up_lines_are_those_of_ci():
    lines = [line for line in SHELL if line.startswith("python3 -m venv")]
    assert len(lines) == 2
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(line in ci for line in lines)


def test_yaml_example_is_a_profile(sjdvp, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(re.search(r"```yaml\n(.*?)```", README, re.DOTALL)[1])
    assert sjdvp("profiles", "check", file).code == 0


def test_files_of_the_tree_exist():
    tree = README.split("## Code")[1].split("    profiles/")[1]
    names = re.findall(
        r"(?:^    | {2,})(\w[\w/]*(?:\.py|/))(?= )",
        "    profiles/" + tree.split("\n\n")[0],
        re.MULTILINE,
    )
    assert len(names) > 15
    for name in names:
        assert (ROOT / name).exists() or (ROOT / "sjdvp" / name).exists(), name


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
