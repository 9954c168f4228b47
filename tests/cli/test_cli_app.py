"""Help, mistakes, pipes: what every command shares."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sjdvp import __version__
from sjdvp_cli.app import COMMANDS, CommandTable, run
from sjdvp_cli.errors import report
from tests.cli.conftest import GOLDEN, Terminal, own_help, settings_of

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "numpy", "PIL", "scipy"}


def process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sjdvp_cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.parametrize("name", ["sjdvp", *COMMANDS])
def test_help_is_as_reviewed(sjdvp, name):
    """Renew with: python -m tests.cli.renew ."""
    result = sjdvp(*[] if name == "sjdvp" else [name], "--help")
    assert (result.code, result.err) == (0, "")
    assert own_help(result.out) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_shared_settings_are_as_reviewed(sjdvp):
    """Renew with: python -m tests.cli.renew ."""
    shared = settings_of(sjdvp("generate", "--help").out)
    assert shared == (GOLDEN / "settings.txt").read_text(encoding="utf-8")


def test_no_golden_outlives_its_command():
    assert {file.stem for file in GOLDEN.iterdir()} == {"settings", "sjdvp", *COMMANDS}


def test_no_command_shows_the_help(sjdvp):
    assert sjdvp() == sjdvp("--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_and_its_default(name):
    """A flag is off unless it is given, and a required option has no default."""
    command = CommandTable()[name]
    context = command.make_context(name, [], resilient_parsing=True)
    for parameter in command.get_params(context):
        name, text = parameter.get_help_record(context)
        assert re.match(r"\S", text), name
        a_switch = getattr(parameter, "is_flag", False) and not parameter.secondary_opts
        argument = parameter.param_type_name == "argument"
        assert a_switch or argument or "[default: " in text or "required]" in text, name


def test_version(sjdvp):
    assert sjdvp("--version").out == f"sjdvp {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["generate", "--promts", "x"], "no such option: --promts", "--prompt or --prompts or"),
        (["generate", "--prom", "x"], "no such option: --prom", "did you mean"),  # no abbreviations
        (["generate", "--steps", "50"], "there is no --steps", "no denoising steps"),
        (["generate", "--lora", "x"], "there is no --lora", "merge it into the weights"),
        (["generate", "--prompts", "x"], "missing option '--out' / '-o'", "sjdvp generate --help"),
        (
            ["generate", "-o", "x"],
            "prompts must come from either --prompts or --prompt",
            "--prompts prompts.txt",
        ),
        (
            ["generate", "-o", "x", "--prompts", "x", "--prompt", "x"],
            "prompts must come from either",
            "",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--size", "3y"],
            "--size must be N or WxH",
            "--size 512",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--gpus", "0,x"],
            "--gpus must be all, how many, or which GPUs",
            "--gpus 0,2",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--gpus", "1,1"],
            "--gpus 1,1 names no GPU, or one of them twice",
            "--gpus 0,2",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--gpus", "2", "--workers", "2"],
            "both set the number of processes",
            "give one of them",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--decoder", "sdj"],
            "unknown decoder 'sdj'",
            "did you mean 'sjd'?",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--window", "many"],
            "decoder.window must be a whole number",
            "",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--set", "window=3"],
            "unknown key window",
            "did you mean decoder.window?",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--set", "window"],
            "--set must be KEY=VALUE",
            "",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--cfg", "3", "--set", "sampling.cfg_scale=4"],
            "given twice",
            "",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--shard", "2/2"],
            "shard 2/2 does not exist",
            "",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--progress", "fancy"],
            "'fancy' is not one of 'auto', 'bar'",
            "",
        ),
        (["generate", "-o", "x", "--prompt", "x", "--log", "-", "-0"], "both use stdout", ""),
        (
            ["generate", "-o", "x", "--prompt", "x", "--limit", "x"],
            "'--limit': it must be a whole number",
            "",
        ),
        (
            ["generate", "-o", "x", "--prompt", "x", "--limit", "-1"],
            "'--limit': it must be 0 or more",
            "",
        ),
        (
            ["export", "x"],
            "missing option '--layout': one of geneval, t2i-compbench",
            "sjdvp export --help",
        ),
        (["profiles", "show", "emojy"], "unknown profile 'emojy'", "did you mean emoji?"),
        (["prompts", "--formt", "txt", "x"], "no such option: --formt", "--format"),
        (["genrate"], "no such command 'genrate'. Did you mean 'generate'?", "sjdvp --help"),
    ],
)
def test_mistakes_are_one_line_and_advice(sjdvp, arguments, message, hint):
    result = sjdvp(*arguments)
    assert (result.code, result.out) == (2, "")
    first, *advice = result.err.rstrip("\n").split("\n")
    assert first.startswith("sjdvp: error: ")
    assert message in first
    assert hint in "".join(advice)
    assert len(advice) <= 1


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "--version",
        "generate --help",
        "generate --stesp 3",
        "generate --prompt x",
        "doctor --help",
        "profiles",
        "profiles show --set decoder.preset=sjdvp",
        "profiles check",
        "slrum",
        "prompts tests/data/first32.txt",
        "check nowhere",
        "generate --prompts nowhere -o nowhere",
        "generate --prompts tests/data/first32.txt -o nowhere --dry-run",
    ],
)
def test_light_commands_import_nothing_heavy(arguments):
    """The plan of a run may know what a image is, and no more."""
    code = f"import sys; from sjdvp_cli.app import run; run({arguments.split()!r}); "
    code += "print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stdout.split("\n"))
    assert "sjdvp_cli.app" in loaded
    assert not loaded & (HEAVY if "-o" not in arguments else HEAVY - {"numpy", "PIL"})


SMALLEST_APP = """
import typer

app = typer.Typer()

@app.command()
def one(size: int = 1): ...

@app.command()
def two(size: int = 1): ...

app()
"""


@pytest.mark.process
def test_help_costs_little_more_than_typer_itself():
    """A bound in seconds would test the machine: help takes 0.2 to 0.5 s of processor time,
    nearly all of it in typer."""

    def seconds(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command, "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    pairs = [
        (seconds("-m", "sjdvp_cli", "generate"), seconds("-c", SMALLEST_APP, "one"))
        for _ in range(3)
    ]
    ours, smallest = (min(column) for column in zip(*pairs, strict=True))
    assert ours < 1.5 * smallest


@pytest.mark.process
def test_a_closed_pipe_is_no_traceback():
    command = [sys.executable, "-m", "sjdvp_cli", "profiles", "show"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 141


@pytest.mark.process
def test_streams_are_utf_8_in_any_locale(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("description: 日本\n", encoding="utf-8")
    done = process(
        "profiles",
        "show",
        str(file),
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        encoding="utf-8",
    )
    assert "description\t日本\tprofile p" in done.stdout


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color(environ, coloured, monkeypatch, capsys):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    report("wrong", "", 2)
    assert ("\x1b[31m" in terminal.getvalue()) is coloured


def test_a_path_may_start_at_home(sjdvp, tmp_path, monkeypatch, generator):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("a cat\n")
    (tmp_path / "p.yaml").write_text("run: {seed: 7}\n")
    assert (
        sjdvp(
            "generate", "--prompts", "~/p.txt", "-o", "~/out", "--log", "~/log", "-p", "~/p.yaml"
        ).code
        == 0
    )
    assert sjdvp("check", "~/out").code == 0
    assert sjdvp("report", "~/out", "-o", "~/page.html").code == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"out", "log", "page.html"}
    assert not (tmp_path / "~").exists()
    assert (
        sjdvp("generate", "--prompt", "~/x", "-o", "~/other", "--log", "-").out.count(
            '"prompt": "~/x"'
        )
        == 1
    )


def test_names_with_underscores_and_aliases_are_the_same_flags(sjdvp):
    line = ("generate", "--prompt", "x", "-o", "x", "--dry-run")
    plans = {
        sjdvp(*line, flag, "3").out
        for flag in ("--cfg-scale", "--cfg_scale", "--guidance_scale", "--cfg")
    }
    assert len(plans) == 1
    assert "CFG scale 3.0" in plans.pop()


@pytest.mark.parametrize(
    "line",
    [
        ["check", ""],
        ["generate", "--prompt", "x", "-o", ""],
        ["generate", "--prompt", "x", "--out="],
    ],
)
def test_an_empty_argument_is_no_folder(sjdvp, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    result = sjdvp(*line)
    assert (result.code, list(tmp_path.iterdir())) == (2, [])
    assert " is empty" in result.err


def test_a_deleted_current_folder_is_told_of(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(["prompts", "x.txt"]) == 2
    assert "the current folder has been deleted" in capsys.readouterr().err
