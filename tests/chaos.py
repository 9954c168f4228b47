"""Kills runs with SIGKILL at random moments: does the folder become that of an undisturbed run?

    python -m tests.chaos --kills 200 --seed 1              # a generator that needs no model
    python -m tests.chaos --kills 12 --seed 1 --embedded    # the embedded model

Each folder goes through four commands with two workers, two images per prompt, seeds in the prompt
file and --save-tokens: a plain run, --overwrite, --reroll and --update-prompts. Each is killed up
to three times (the parent, one of its workers, or all of them at once) and run again until it ends
well. Then log rows, image files and saved tokens are compared. Prints one JSON object.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.runs.check import check_folder
from sjdvp.runs.jsonl import read_rows
from sjdvp.runs.sharding import log_paths
from sjdvp.runs.tokens import saved_tokens

# Of a log row: what differs between two runs of the same command.
_TIMES = ["save_s", "latency_s", "prefill_s", "decode_s", "pixels_s", "started_at"]
VOLATILE = frozenset([*_TIMES, "host", "pid", "peak_mem_bytes", "warmup", "batch_size"])
PATIENCE_S = 300
MOST_TRIES = 4  # of a command that nobody kills; images whose pixels failed take two


@dataclass(frozen=True)
class Phase:
    """A command, and the prompts that it is given."""

    flags: tuple[str, ...]
    corrected: bool = False  # a few prompts have another text or seed


PHASES = (
    Phase(()),
    Phase(("--overwrite",)),
    Phase(("--reroll", "1,3-6")),
    Phase(("--update-prompts", "0-7"), corrected=True),
)


def prompts(n: int, *, corrected: bool) -> list[dict[str, Any]]:
    """Return prompts with and without seeds; the pixels of some fail at first."""
    rows: list[dict[str, Any]] = [{"prompt": f"prompt {i}"} for i in range(n)]
    for i in range(0, n, 5):
        rows[i]["seed"] = 100 + i
    for i in range(3, n, 6):
        rows[i]["prompt"] = f"pixels {i}"
    rows[2]["n"] = 1
    if corrected:
        rows[1]["prompt"] = "another prompt"
        rows[3]["prompt"] = "pixels of another prompt"
        rows[4]["seed"] = 7
        del rows[5]["seed"]
    return rows


@dataclass(frozen=True)
class Contents:
    """What a folder holds, without what differs between two runs of the same command."""

    rows: Counter[str]
    images: dict[str, bytes]
    tokens: Counter[tuple[Any, ...]]

    @classmethod
    def of(cls, out: Path) -> "Contents":
        rows = (row for log in log_paths(out) for row in read_rows(log))
        kept = ({k: v for k, v in row.items() if k not in VOLATILE} for row in rows)
        images = {path.name: path.read_bytes() for path in (out / "images").iterdir()}
        tokens = ((saved.key, saved.decode()) for saved in saved_tokens(out))
        return cls(Counter(map(json.dumps, kept)), images, Counter(tokens))


class Chaos:
    """An undisturbed folder after each phase, and disturbed ones to compare with it."""

    def __init__(self, folder: Path, seed: int, *, embedded: bool = False) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.embedded = embedded
        self.counts: Counter[str] = Counter(
            dict.fromkeys(["parent", "worker", "group", "lost", "duplicated", "corrupt"], 0)
        )
        # from a kill to the end of the last process that belonged to the killed one
        self.silence_s: list[float] = []
        n_prompts = 8 if embedded else 20
        for corrected in (False, True):
            lines = map(json.dumps, prompts(n_prompts, corrected=corrected))
            text = "".join(f"{line}\n" for line in lines)
            self.prompts(corrected=corrected).write_text(text, encoding="utf-8")
        self.wanted: list[Contents] = []
        begun = time.monotonic()
        for phase in PHASES:
            self.finish("undisturbed", phase)
            self.wanted.append(Contents.of(folder / "undisturbed"))
        self.duration = (time.monotonic() - begun) / len(PHASES)

    @property
    def kills(self) -> int:
        return sum(self.counts[whom] for whom in ("parent", "worker", "group"))

    def prompts(self, *, corrected: bool) -> Path:
        return self.folder / ("corrected.jsonl" if corrected else "prompts.jsonl")

    def start(self, name: str, phase: Phase) -> subprocess.Popen[bytes]:
        program = "sjdvp_cli" if self.embedded else "tests.workers.program"
        source = self.prompts(corrected=phase.corrected)
        command = [sys.executable, "-m", program, "generate", "--prompts", source]
        command += ["-o", self.folder / name, "--seed", "1", "-n", "2", "--workers", "2"]
        if self.embedded:
            command += ["--decoder", "coupled", "--window", "16"]
        with (self.folder / "messages.txt").open("ab") as messages:
            return subprocess.Popen(
                [*map(str, command), "--save-tokens", *phase.flags],
                stdout=messages,
                stderr=messages,
                process_group=0,
            )

    def finish(self, name: str, phase: Phase) -> None:
        """Run a command until every image is there."""
        for _ in range(MOST_TRIES):
            code = self.start(name, phase).wait(PATIENCE_S)
            if code == 0:
                return
            assert code == 1, f"exit code {code}"
        raise AssertionError("the command does not end well")

    def disturbed_folder(self, number: int) -> None:
        name = f"run{number}"
        for phase, wanted in zip(PHASES, self.wanted, strict=True):
            self.disturb(name, phase, wanted)
            self.compare(self.folder / name, wanted)
        shutil.rmtree(self.folder / name)

    def disturb(self, name: str, phase: Phase, wanted: Contents) -> None:
        """Kill a command some times, then let it end well."""
        out = self.folder / name
        for _ in range(self.rng.randint(1, 3)):
            process = self.start(name, phase)
            self.await_moment(process, out, wanted.rows.total())
            if process.poll() is None:
                self.kill(process, self.rng.choice(["parent", "worker", "group"]))
            if process.returncode == 0 or has_ended(out, wanted):
                return  # a command that has ended begins anew
        self.finish(name, phase)

    def await_moment(self, process: subprocess.Popen[bytes], out: Path, most: int) -> None:
        """Wait for one of the log rows to come, and a moment more; at times only for the start."""
        there = n_rows(out)
        wanted = self.rng.randint(there - 5, most)
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
            assert process.wait(PATIENCE_S) in (0, 1), "the run did not survive its worker"
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

    def compare(self, out: Path, wanted: Contents) -> None:
        found = Contents.of(out)
        assert check_folder(out).whole
        lost = (wanted.rows - found.rows, wanted.tokens - found.tokens)
        extra = (found.rows - wanted.rows, found.tokens - wanted.tokens)
        missing, foreign = wanted.images.keys() - found.images, found.images.keys() - wanted.images
        self.counts["lost"] += sum(one.total() for one in lost) + len(missing)
        self.counts["duplicated"] += sum(one.total() for one in extra) + len(foreign)
        self.counts["corrupt"] += sum(
            found.images[name] != data
            for name, data in wanted.images.items()
            if name in found.images
        )


def has_ended(out: Path, wanted: Contents) -> bool:
    """Return whether a killed command had done all of its work, in the moment before its end."""
    return n_rows(out) == wanted.rows.total() and not list(out.glob(".redo.*"))


def n_rows(out: Path) -> int:
    return sum(log.read_bytes().count(b"\n") for log in log_paths(out))


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


def chaos(kills: int, seed: int, *, embedded: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        all_runs = Chaos(Path(folder), seed, embedded=embedded)
        folders = 0
        while all_runs.kills < kills:
            all_runs.disturbed_folder(folders)
            folders += 1
            print(folders, all_runs.kills, dict(all_runs.counts), file=sys.stderr, flush=True)
        silence = sorted(all_runs.silence_s) or [0.0]
        seconds = {"silence_median_s": silence[len(silence) // 2], "silence_max_s": silence[-1]}
        return {
            "folders": folders,
            "commands": folders * len(PHASES),
            "kills": all_runs.kills,
            **all_runs.counts,
            **{key: round(value, 3) for key, value in seconds.items()},
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--embedded", action="store_true")
    given = parser.parse_args()
    print(json.dumps(chaos(given.kills, given.seed, embedded=given.embedded)))
