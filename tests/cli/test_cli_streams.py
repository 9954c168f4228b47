"""Standard streams that are closed, full, or read by nobody: no traceback, and nothing already made
is lost.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PROMPTS = "tests/data/first32.txt"
FULL = "No space left on device"
# The fake generates in the real program, whose streams only `main` prepares.
PROGRAM = """
from contextlib import nullcontext
import sjdvp_cli.app, sjdvp_cli.generate
from tests.cli.conftest import StandIn
sjdvp_cli.generate.open_generator = lambda config: nullcontext(StandIn())
sjdvp_cli.generate.check_model = lambda config: None
sjdvp_cli.app.main()
"""

if not Path("/dev/full").exists():
    pytest.skip("needs /dev/full", allow_module_level=True)


ENVIRONMENTS = {
    "plain": {},
    "unbuffered": {"PYTHONUNBUFFERED": "1"},
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.fixture
def shell(tmp_path):
    """Run `sjdvp` with some arguments and redirections of the shell."""
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}

    def call(
        arguments: str, redirected: str, environment: str = "plain"
    ) -> subprocess.CompletedProcess[str]:
        command = [
            "sh",
            "-c",
            f'exec "$0" -c "$1" {arguments} {redirected}',
            sys.executable,
            PROGRAM,
        ]
        env = environ | ENVIRONMENTS[environment]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=env
        )

    return call


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def images(out):
    return sorted(file.name for file in (out / "images").iterdir())


WHOLE = ["000000.png", "000001.png", "000002.png"]
GENERATE = f"generate --prompts {PROMPTS} --limit 3 -o"


@pytest.mark.parametrize(
    "redirected", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full", ">&- 2>/dev/full"]
)
def test_generate_works_though_a_stream_is_closed(shell, out, redirected):
    done = shell(f"{GENERATE} {out} --json -v", redirected)
    assert (done.returncode, images(out)) == (0, WHOLE)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "flags",
    ["--log -", "--json", "--print paths", "-0", "--log - --json", "--log /dev/full", "-q --json"],
)
def test_generate_makes_all_images_though_its_lines_find_no_room(shell, out, flags):
    done = shell(f"{GENERATE} {out} {flags}", ">/dev/full" if "/dev/full" not in flags else "")
    what = "the copy of the log" if "/dev/full" in flags else "stdout"
    assert (done.returncode, images(out)) == (1, WHOLE)
    assert (
        done.stderr.count(
            f"sjdvp: warning: cannot write {what} ({FULL}); "
            "the run goes on and will end with exit code 1\n"
        )
        == 1
    )
    assert done.stderr.endswith("sjdvp: 3/3 ok\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_however_python_was_started(shell, out, environment):
    done = shell(f"{GENERATE} {out}", "2>/dev/full", environment)
    assert (done.returncode, images(out)) == (0, WHOLE)
    done = shell(f"{GENERATE} {out}/again --json", ">/dev/full", environment)
    assert (done.returncode, images(out / "again")) == (1, WHOLE)
    for arguments in ("--help", "profiles"):
        done = shell(arguments, ">/dev/full", environment)
        assert (done.returncode, done.stderr.count("\n")) == (1, 2)


def test_a_full_log_copy_leaves_the_lines_of_stdout(shell, out):
    done = shell(f"{GENERATE} {out} --log /dev/full --json", "")
    assert json.loads(done.stdout)["ok"] == 3


def test_no_prompt_comes_from_a_closed_stdin(shell, out):
    done = shell(f"generate --prompts - -o {out}", "<&-")
    assert done.returncode == 2
    assert "sjdvp: error: stdin: no prompt in it\n" in done.stderr


ANSWERS = [
    f"prompts {PROMPTS}",
    f"prompts {PROMPTS} --json",
    "profiles",
    "profiles show --json",
    "profiles check",
    "--help",
]
ANSWERS += ["generate --help", "--version", f"generate --prompts {PROMPTS} -o nowhere --dry-run"]


@pytest.mark.parametrize("arguments", ANSWERS)
def test_an_answer_nobody_wants_is_no_error(shell, arguments):
    done = shell(arguments, ">&-")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", ANSWERS)
def test_an_answer_that_finds_no_room_is_one_line(shell, arguments):
    done = shell(arguments, ">/dev/full")
    assert done.returncode == 1
    assert (
        f"sjdvp: error: cannot write to stdout: {FULL}\n"
        "  free some space, or redirect it elsewhere\n" in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full"])
def test_mistakes_keep_their_exit_code_without_stderr(shell, redirected):
    assert shell("check nowhere", redirected).returncode == 2


def test_a_reader_that_goes_away_stops_no_run(shell, out):
    done = shell(f"{GENERATE} {out} --print paths", "| head -1 >/dev/null")
    assert images(out) == WHOLE
    assert "Traceback" not in done.stderr
