"""Figure 5: from the shell to the first image, and to the help, beside the imports that nobody can do without."""

import resource
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.timing import head, row

RUN = [sys.executable, "-m", "sjdvp_cli"]


def start(options):
    """Processor time is user and system time of the whole process; on a busy machine only that says something."""
    with tempfile.TemporaryDirectory() as out:
        commands = {
            "`import torch, transformers`": [sys.executable, "-c", "import torch, transformers"],
            "`sjdvp generate`, one image": [
                *RUN,
                "generate",
                "--prompt",
                "red apple",
                "--seed",
                "7",
                "--overwrite",
                "--out",
                out,
            ],
            "`sjdvp --help`": [*RUN, "--help"],
        }
        rounds = [
            [seconds(command) for command in commands.values()] for _ in range(options.repeats + 1)
        ][1:]
    head("Start-up", "", "processor s", "ratio", "wall s", "ratio")
    figures = [
        tuple(map(statistics.median, zip(*times, strict=True)))
        for times in zip(*rounds, strict=True)
    ]
    for name, (processor, wall) in zip(commands, figures, strict=True):
        row(name, processor, processor / figures[0][0], wall, wall / figures[0][1])


def seconds(command):
    """Return the processor time of a command and the time it took."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall
