"""SLURM's commands, played by small scripts: what is asked of them and what is made of their
answers.
"""

import json
import shlex

import pytest

from sjdvp.config import RunConfig
from sjdvp.errors import SlurmError
from sjdvp.events import ignore
from sjdvp.generate import Request, generate
from sjdvp.runs.sharding import Shard
from sjdvp.slurm import queue
from sjdvp.slurm.script import read_array
from sjdvp_cli.app import run
from tests.fake_generator import FakeGenerator

CONFIG = "MaxArraySize            = 1001\n"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Answer as a SLURM whose commands print what they are given; each call is noted in `calls`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def answer(**answers: str):
        for name, text in answers.items():
            (folder / f"{name}.txt").write_text(text)
            script = folder / name
            script.write_text(
                f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n'
                f"exec /bin/cat {folder}/{name}.txt\n"
            )
            script.chmod(0o755)
        return lambda: (
            (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
        )

    return answer


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"prompt {i}\n" for i in range(10)), encoding="utf-8")
    return file


def test_array_list():
    assert queue.array_list([]) == ""
    assert queue.array_list([7]) == "7"
    assert queue.array_list([4, 0, 1, 2, 7, 8, 2]) == "0-2,4,7-8"


def test_queue_lines(slurm):
    slurm(
        squeue="5|0|RUNNING|n1|None\n5|1|PENDING||Resources\n6|N/A|RUNNING|n1|None\n4|12|TIMEOUT|n2|TimeLimit\n"
    )
    tasks = queue.queued_tasks()
    assert [(task.job, task.task, task.active, task.node) for task in tasks] == [
        ("5", 0, True, "n1"),
        ("5", 1, True, ""),
        ("4", 12, False, "n2"),
    ]


def test_a_command_that_is_not_there_or_refuses(slurm, tmp_path):
    with pytest.raises(SlurmError, match="there is no scontrol here"):
        queue.largest_array()
    slurm(sbatch="")
    (tmp_path / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: Invalid account' >&2; exit 1\n"
    )
    with pytest.raises(SlurmError, match=r"^sbatch: Invalid account$"):
        queue.submit(tmp_path / "array.sh")


def test_own_job():
    assert queue.own_job({}) == ""
    assert queue.own_job({"SLURM_JOB_ID": "7"}) == "7"
    assert (
        queue.own_job({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"})
        == "5_2"
    )


def slurm_command(*words: object) -> int:
    return run(["slurm", *map(str, words)])


def generate_shard(out, prompts, index: int) -> None:
    request = Request(RunConfig(), out, prompts=prompts, shard=Shard(index, 4))
    generate(request, FakeGenerator().open, ignore)


def test_submit(slurm, out, prompts, capsys):
    calls = slurm(scontrol=CONFIG, sbatch="5\n", squeue="")
    array = ("--shards", 4, "--at-once", 2, "--seed", 1, "--submit")
    assert slurm_command("--prompts", prompts, "-o", out, *array) == 0
    assert capsys.readouterr().out == "5\n"
    submitted = [call for call in calls() if call.startswith("sbatch")]
    assert [call.split(f"{out}/slurm/")[-1] for call in submitted] == ["array.sh", "check.sh"]
    assert "--array=0-3%2" in submitted[0]
    assert "--dependency=afterany:5" in submitted[1]
    assert read_array(out) == (4, "%2")


def test_status_and_missing(slurm, out, prompts, capsys):
    """Shard 0 is done and forgotten by the queue, 1 has failed, 2 runs, 3 is nowhere.

    Another job of the same user does not count.
    """
    calls = slurm(scontrol=CONFIG, sbatch="5\n", squeue="")
    array = ("--shards", 4, "--at-once", 2, "--seed", 1, "--submit")
    assert slurm_command("--prompts", prompts, "-o", out, *array) == 0
    generate_shard(out, prompts, 0)
    generate_shard(out, prompts, 1)
    (out / "images" / "000001.png").unlink()
    slurm(squeue="5|1|FAILED|n1|NonZeroExitCode\n5|2|RUNNING|n1|None\n99|3|RUNNING|n1|None\n")
    capsys.readouterr()
    assert slurm_command("status", out) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "0\t3/3\t0\t-\t-",
        "1\t2/3\t0\t5_1 FAILED (NonZeroExitCode)\tn1",
        "2\t0/2\t0\t5_2 RUNNING\tn1",
        "3\t0/2\t0\t-\t-",
        "--array=1,3",
    ]
    assert "5/10 images; submit 2 shards again" in shown.err
    slurm(sbatch="6\n")
    assert slurm_command("--submit", "--missing", "-o", out, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"job": "6", "array": "1,3", "check": "6"}
    assert "--array=1,3%2" in [call for call in calls() if call.startswith("sbatch")][-2]
    # The new array counts, though the old one's failure is still remembered.
    slurm(
        squeue="5|1|FAILED|n1|NonZeroExitCode\n6|1|PENDING||Priority\n"
        "5|2|RUNNING|n1|None\n6|3|PENDING||Priority\n"
    )
    assert slurm_command("--submit", "--missing", "-o", out) == 0
    assert "is in the queue already" in capsys.readouterr().err


def test_flags_reach_the_script(slurm, out, prompts):
    flags = [
        "--gpus",
        "2",
        "--limit",
        "3",
        "--no-retry-failed",
        "--set",
        "decoder.window=3",
        "--no-metadata",
        "-n",
        "2",
    ]
    assert run(["slurm", "--prompts", str(prompts), "-o", str(out), "--shards", "2", *flags]) == 0
    script = (out / "slurm" / "array.sh").read_text().replace(" \\\n   ", "")
    for wanted in (
        f"generate --prompts {prompts} --limit 3",
        "--no-retry-failed",
        "--set decoder.window=3",
        "--num-images-per-prompt 2",
        "--no-metadata",
        f"--out {out}",
    ):
        assert wanted in script
    assert '--progress plain --gpus all --shard "$SLURM_ARRAY_TASK_ID/2"' in script
    assert "#SBATCH --gres=gpu:2" in script


def test_advice_can_be_pasted(slurm, tmp_path, prompts, capsys):
    out = tmp_path / "my runs"
    assert run(["slurm", "--prompts", str(prompts), "-o", str(out), "--shards", "1"]) == 0
    told = capsys.readouterr().err
    assert shlex.split(told.partition("submit: sjdvp ")[2])[-2:] == ["-o", str(out)]


def test_status_without_slurm_tells_what_is_on_disk(slurm, out, prompts, capsys):
    assert run(["slurm", "--prompts", str(prompts), "-o", str(out), "--shards", "2"]) == 0
    capsys.readouterr()
    assert run(["slurm", "status", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["0\t0/?\t0\t-\t-", "1\t0/?\t0\t-\t-", "--array=0-1"]
    assert "there is no squeue here; showing only what is on disk" in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "{prompts}"], "slurm needs a run folder"),
        (["-o", "{out}"], "slurm needs the number of tasks"),
        (["-o", "{out}", "--shards", "2"], "prompts must come from either"),
        (["-o", "{out}", "--shards", "2", "--prompts", "-"], "cannot read its prompts from stdin"),
        (["-o", "{out}", "--shards", "2", "--prompts", "absent.txt"], "cannot read the prompts"),
        (
            ["-o", "{out}", "--shards", "1002", "--prompts", "{prompts}"],
            "more than the 1001 tasks",
        ),
        (["-o", "{out}", "--missing"], "use: sjdvp slurm --submit --missing"),
        (["-o", "{out}", "--missing", "--submit"], "no array script"),
        (["status", "{out}"], "no array script"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    slurm, out, prompts, capsys, arguments, message
):
    slurm(scontrol=CONFIG, squeue="")
    assert (
        run(["slurm", *[argument.format(out=out, prompts=prompts) for argument in arguments]]) == 2
    )
    assert message in capsys.readouterr().err
    assert not out.exists()
