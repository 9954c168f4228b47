"""A job array on a real cluster through a bad day, from the writing of its script to the check at
its end.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sjdvp.runs.check import check_folder
from sjdvp.runs.jsonl import read_rows
from sjdvp.runs.sharding import log_paths
from tests.slurm.cluster import Cluster, obstacle, running_cluster, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(obstacle()), reason=obstacle())]

ROOT = Path(__file__).parents[2]
SHARDS, IMAGES = 8, 80

PATIENCE = 240  # seconds; a quiet machine needs a few, one that others use as well many


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as cluster:
        yield cluster


class Work:
    """A run folder and the commands of a user at the login node."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.out = folder / "out with 100% spaces"
        self.prompts = folder / "prompts.txt"
        self.hold = folder / "hold"  # while it is there, tasks pause after each image
        self.prompts.write_text("".join(f"prompt {i}\n" for i in range(IMAGES)), encoding="utf-8")

    def sjdvp(self, *arguments: object, module: str = "sjdvp_cli", code: int = 0) -> str:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        done = subprocess.run(
            command,
            env=self.cluster.environ | {"HOLD": str(self.hold)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + (done.stderr if code else "")

    def write(self, *options: object) -> None:
        """Write the scripts, and edit them as a user may: another program."""
        self.sjdvp(
            "slurm",
            "--prompts",
            self.prompts,
            "-o",
            self.out,
            "--shards",
            SHARDS,
            "--seed",
            1,
            *options,
        )
        for name in ("array.sh", "check.sh"):
            script = self.out / "slurm" / name
            script.write_text(script.read_text().replace("-m sjdvp_cli", "-m tests.slurm.program"))

    def send_missing(self) -> dict[str, str]:
        return json.loads(self.sjdvp("slurm", "--submit", "--missing", "-o", self.out, "--json"))

    def status(self) -> tuple[str, list[str | None], int]:
        """Return the list for --array=, the state of each task, and the number of images."""
        told = json.loads(self.sjdvp("slurm", "status", self.out, "--json"))
        states = [shard["task"] and shard["task"]["state"] for shard in told["shards"]]
        return told["array"], states, sum(shard["done"] for shard in told["shards"])

    def rows(self) -> Counter[tuple[int, str]]:
        return Counter(
            (row["index"], row["status"]) for log in log_paths(self.out) for row in read_rows(log)
        )

    def log(self, job: str, task: int) -> str:
        return (self.out / "slurm" / "logs" / f"{job}_{task}.log").read_text(encoding="utf-8")


def ended(cluster: Cluster, *jobs: str) -> bool:
    return all(
        set(cluster.job_states(job).values()) <= {"COMPLETED", "FAILED", "CANCELLED"}
        for job in jobs
    )


def test_an_array_through_a_bad_day(cluster, tmp_path):
    work = Work(cluster, tmp_path)
    work.write()
    assert work.status() == ("0-7", [None] * SHARDS, 0)

    work.hold.touch()
    sent = work.send_missing()
    job = sent["job"]
    assert sent["array"] == "0-7"
    wait_until(
        lambda: set(work.rows()) == {(shard, "ok") for shard in range(4)}, PATIENCE
    )  # four GPUs: four tasks at a time
    nodes = [
        cluster.ask("squeue", "-h", "-j", f"{job}_{task}", "-o", "%N").strip() for task in range(3)
    ]
    assert nodes[0] == nodes[1] != nodes[2]
    array, states, _ = work.status()
    assert (array, states) == ("", ["RUNNING"] * 4 + ["PENDING"] * 4)

    # Task 0 is told that its time is nearly up; the node of task 2 dies; another user's job
    # takes a GPU of the node of task 1.
    cluster.signal(f"{job}_0", "USR1")
    wait_until(lambda: "requeued" in work.log(job, 0), 10)
    cluster.kill_node(nodes[2])
    cluster.ask(
        "sbatch",
        "--partition=high",
        f"--nodelist={nodes[1]}",
        "--gres=gpu:2",
        "--output=/dev/null",
        "--wrap",
        "sleep 3",
    )
    wait_until(lambda: set(map(cluster.job_states(job).get, "012")) == {"PENDING"}, 20)
    assert work.status()[0] == ""  # all three wait for their turn: none is missing
    cluster.start_node(nodes[2])

    # A shard that is being generated is started a second time at the same moment.
    wait_until(lambda: cluster.job_states(job)["0"] == "RUNNING", PATIENCE)
    wait_until(lambda: work.rows()[SHARDS, "ok"] == 1, 20)  # its second image
    again = (
        "generate",
        "--prompts",
        work.prompts,
        "-o",
        work.out,
        "--seed",
        1,
        "--shard",
        f"0/{SHARDS}",
    )
    assert "is being generated by process" in work.sjdvp(
        *again, module="tests.slurm.program", code=2
    )

    # One task is taken out by hand: the only one that has to be sent again.
    cluster.ask("scancel", f"{job}_7")
    wait_until(lambda: cluster.job_states(job)["7"] == "CANCELLED", 20)
    work.hold.unlink()
    wait_until(lambda: ended(cluster, job), 90)
    array, states, images = work.status()
    assert (array, states) == ("7", ["COMPLETED"] * 7 + ["CANCELLED"])
    assert IMAGES - IMAGES // SHARDS <= images < IMAGES
    second = work.send_missing()
    assert second["array"] == "7"
    wait_until(lambda: ended(cluster, second["job"], second["check"]), PATIENCE)
    assert work.status()[0::2] == ("", IMAGES)
    assert cluster.job_states(second["check"]) == {"N/A": "COMPLETED"}

    assert check_folder(work.out).whole
    assert work.rows() == Counter({(index, "ok"): 1 for index in range(IMAGES)})
    assert work.log(job, 0).count("; decoder best") == 2  # appended to, not begun anew
    assert work.sjdvp("slurm", "--submit", "--missing", "-o", work.out) == ""


def test_ranks_of_srun_and_a_single_process_beside_them(cluster, tmp_path):
    """Outside of srun SLURM says NTASKS=4 and PROCID=0, but one process generates everything."""
    work = Work(cluster, tmp_path)
    options = (
        f"-m tests.slurm.program generate --prompts {work.prompts} --limit 8 --shard auto --seed 1"
    )
    command = f"{sys.executable} {options} -o {tmp_path}"
    script = f"cd {ROOT}; {command}/one; srun {command}/four"
    job = cluster.ask(
        "sbatch",
        "--parsable",
        "-n4",
        f"--output={tmp_path}/log",
        "--export=ALL,HOLD=/nothing",
        "--wrap",
        script,
    ).strip()
    wait_until(lambda: ended(cluster, job), PATIENCE)
    assert check_folder(tmp_path / "one").whole
    assert check_folder(tmp_path / "four").whole
    assert [path.name for path in log_paths(tmp_path / "one")] == ["log.shard-000-of-001.jsonl"]
    assert [path.name for path in log_paths(tmp_path / "four")] == [
        f"log.shard-00{i}-of-004.jsonl" for i in range(4)
    ]


def test_more_shards_than_an_array_may_have_tasks(cluster, tmp_path):
    work = Work(cluster, tmp_path)
    told = work.sjdvp("slurm", "--prompts", work.prompts, "-o", work.out, "--shards", 1002, code=2)
    assert "more than the 1001 tasks" in told
    assert not work.out.exists()
