"""The scripts as text: what they say, what may not be in them, what is read back."""

from pathlib import Path

import pytest

from sjdvp.errors import ConfigError, SlurmError
from sjdvp.slurm.script import ARRAY, CHECK, FOLDER, ArrayJob, Resources, read_array, write_scripts


def job(out, **changes):
    fields = {
        "out": out,
        "shards": 8,
        "program": ("python", "-m", "sjdvp_cli"),
        "generate": ("--prompts", "my prompts.txt", "--out", str(out)),
        "cwd": Path("/home/me"),
        "resources": Resources(time="4:00:00", partition="gpu", more=("--qos=high",)),
    }
    return ArrayJob(**{**fields, **changes})


def directives(text):
    return [
        line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")
    ]


def test_what_the_array_asks_and_runs():
    text = job(Path("/data/out"), at_once=4).array_script()
    assert directives(text) == [
        "--array=0-7%4",
        "--job-name=sjdvp-out",
        "--chdir=/home/me",
        "--output=/data/out/slurm/logs/%A_%a.log",
        "--gres=gpu:1",
        "--time=4:00:00",
        "--partition=gpu",
        "--qos=high",
        "--requeue",
        "--open-mode=append",
        "--signal=B:USR1@120",
    ]
    command = text[text.index("exec ") :]
    assert command == (
        "exec python -m sjdvp_cli generate \\\n    --prompts 'my prompts.txt' \\\n"
        "    --out /data/out \\\n"
        '    --shard "$SLURM_ARRAY_TASK_ID/8"\n'
    )


def test_the_check_asks_for_no_gpu():
    text = job(Path("/data/out")).check_script()
    assert "--partition=gpu" in directives(text)
    assert not [option for option in directives(text) if "gres" in option or "time" in option]
    assert text.endswith("exec python -m sjdvp_cli check /data/out\n")


def test_written_scripts_are_read_back_edits_included(tmp_path):
    script = write_scripts(job(tmp_path, at_once=2))
    assert script == tmp_path / FOLDER / ARRAY
    assert (tmp_path / FOLDER / CHECK).is_file()
    assert (tmp_path / FOLDER / "logs").is_dir()
    assert read_array(tmp_path) == (8, "%2")
    script.write_text(
        script.read_text()
        .replace("$SLURM_ARRAY_TASK_ID/8", "${SLURM_ARRAY_TASK_ID}/16")
        .replace("%2\n", "\n")
    )
    assert read_array(tmp_path) == (16, "")


def test_an_edited_script_is_not_written_over(tmp_path):
    script = write_scripts(job(tmp_path))
    assert write_scripts(job(tmp_path)) == script
    script.write_text(edited := script.read_text() + "# mine\n")
    with pytest.raises(SlurmError, match=r"array\.sh exists and is different") as caught:
        write_scripts(job(tmp_path))
    assert "delete it first" in caught.value.hint
    assert script.read_text() == edited


def test_scripts_that_cannot_be_used(tmp_path):
    with pytest.raises(SlurmError, match="no array script"):
        read_array(tmp_path)
    write_scripts(job(tmp_path)).write_text("#!/bin/bash\n")
    with pytest.raises(SlurmError, match="does not give the number of shards"):
        read_array(tmp_path)


def test_nothing_smuggles_a_line_into_the_script(tmp_path):
    with pytest.raises(ConfigError, match="line end"):
        job(tmp_path / "a\n#SBATCH --uid=0").array_script()
    text = job(tmp_path, generate=("--prompt", "a cat\n#SBATCH --uid=0; $(reboot)")).array_script()
    assert (
        "'a cat\n#SBATCH --uid=0; $(reboot)'" in text
    )  # quoted, and after the first command, where sbatch reads no more
    assert text.index("set -eu") < text.index("--uid=0")


def test_no_shards():
    with pytest.raises(ConfigError, match="--shards must be 1 or more"):
        job(Path("out"), shards=0)
