"""Runs that are killed with SIGKILL at random moments and resumed: is the folder that of an
unbroken run?

    python -m tests.chaos --runs 200 --seed 1

Each run is killed up to three times: the parent, one of its workers, or all of them at once. Prints
one JSON object.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sjdvp.runs.check import check_folder
from sjdvp.runs.jsonl import read_rows
from sjdvp.runs.sharding import log_paths

IMAGES = 40
VOLATILE = ("save_s", "host", "pid", "started_at")
PATIENCE_S = 300


class Chaos:
    """One unbroken run, and broken ones to compare with it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter(
            dict.fromkeys(["parent", "worker", "group", "lost", "duplicated", "corrupt"], 0)
        )
        self.silence_s: list[
            float
        ] = []  # from a kill to the end of the last process that belonged to the killed one
        self.prompts = folder / "prompts.txt"
        self.prompts.write_text("".join(f"prompt {i}\n" for i in range(IMAGES)), encoding="utf-8")
        begun = time.monotonic()
        assert self.start("unbroken").wait(PATIENCE_S) == 0
        self.duration = time.monotonic() - begun
        self.wanted = contents(folder / "unbroken")

    def start(self, name: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "tests.workers.program",
            "generate",
            "--prompts",
            self.prompts,
            "-o",
            self.folder / name,
        ]
        with (self.folder / "messages.txt").open("ab") as messages:
            return subprocess.Popen(
                [*map(str, command), "--seed", "1", "--workers", "2"],
                stdout=messages,
                stderr=messages,
                process_group=0,
            )

    def broken_run(self, number: int) -> None:
        name = f"run{number}"
        for _ in range(self.rng.randint(1, 3)):
            process = self.start(name)
            self.await_moment(process, self.folder / name)
            if process.poll() is None:
                self.kill(process, self.rng.choice(["parent", "worker", "group"]))
        assert self.start(name).wait(PATIENCE_S) == 0, "the resumed run did not end well"
        self.judge(self.folder / name)
        shutil.rmtree(self.folder / name)

    def await_moment(self, process: subprocess.Popen[bytes], out: Path) -> None:
        """Wait for one of the images that are still to come, and a moment more; now and then only
        for the start.
        """
        there = n_rows(out)
        wanted = self.rng.randint(there - 5, IMAGES)
        while process.poll() is None and n_rows(out) < wanted:
            time.sleep(0.002)
        time.sleep(self.rng.uniform(0, 0.05 if wanted > there else self.duration / 2))

    def kill(self, process: subprocess.Popen[bytes], whom: str) -> None:
        children = descendants(process.pid)
        workers = [pid for pid, line in children.items() if b"spawn_main" in line]
        if whom == "worker" and workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(workers), signal.SIGKILL)
            self.counts["worker"] += 1
            assert process.wait(PATIENCE_S) == 0, "the run did not survive its worker"
            return
        self.counts["group" if whom == "group" else "parent"] += 1
        if whom == "group":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        self.await_silence(children)

    def await_silence(self, children: dict[int, bytes]) -> None:
        """Wait until nothing that the killed run had started is there any more."""
        begun = time.monotonic()
        while any(alive(pid, line) for pid, line in children.items()):
            assert time.monotonic() - begun < PATIENCE_S, "an orphan"
            time.sleep(0.01)
        self.silence_s.append(time.monotonic() - begun)

    def judge(self, out: Path) -> None:
        images, rows = contents(out)
        wanted_images, wanted_rows = self.wanted
        self.counts["lost"] += len(wanted_images.keys() - images.keys()) + len(wanted_rows - rows)
        self.counts["duplicated"] += (
            len(images.keys() - wanted_images.keys()) + (rows - wanted_rows).total()
        )
        self.counts["corrupt"] += sum(
            images[name] != data for name, data in wanted_images.items() if name in images
        )
        assert check_folder(out).whole


def n_rows(out: Path) -> int:
    return sum(log.read_bytes().count(b"\n") for log in log_paths(out))


def contents(out: Path) -> tuple[dict[str, bytes], Counter[str]]:
    """Return the images' bytes (and anything else that lies beside them), and how often each log
    row is there.
    """
    rows = (row for log in log_paths(out) for row in read_rows(log))
    images = {path.name: path.read_bytes() for path in (out / "images").iterdir()}
    return images, Counter(
        json.dumps({key: value for key, value in row.items() if key not in VOLATILE})
        for row in rows
    )


def descendants(parent: int) -> dict[int, bytes]:
    """Return the children of a process, with their command lines."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found[int(stat.parent.name)] = (stat.parent / "cmdline").read_bytes()
    return found


def alive(pid: int, line: bytes) -> bool:
    try:
        return bool(line) and Path(f"/proc/{pid}/cmdline").read_bytes() == line  # a zombie has none
    except OSError:
        return False


def chaos(runs: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        all_runs = Chaos(Path(folder), seed)
        for number in range(runs):
            all_runs.broken_run(number)
            print(number + 1, dict(all_runs.counts), file=sys.stderr, flush=True)
        kills = sum(all_runs.counts[whom] for whom in ("parent", "worker", "group"))
        silence = sorted(all_runs.silence_s) or [0.0]
        seconds = {"silence_median_s": silence[len(silence) // 2], "silence_max_s": silence[-1]}
        return {
            "runs": runs,
            "kills": kills,
            **all_runs.counts,
            **{key: round(value, 3) for key, value in seconds.items()},
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(chaos(given.runs, given.seed)))
