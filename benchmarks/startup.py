"""From the shell to the help and to the first image, beside the imports that both need."""

import resource
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.timing import print_head, print_row

SJDVP = [sys.executable, "-m", "sjdvp_cli"]


def startup(options):
    """Processor time is user and system time of the whole process."""
    with tempfile.TemporaryDirectory() as out:
        image = ["generate", "--prompt", "red apple", "--seed", "7", "--overwrite", "--out", out]
        commands = {
            "`import torch, transformers`": [sys.executable, "-c", "import torch, transformers"],
            "`sjdvp generate`, one image": [*SJDVP, *image],
            "`sjdvp --help`": [*SJDVP, "--help"],
        }
        rounds = [[seconds(c) for c in commands.values()] for _ in range(options.repeats + 1)]
    medians = [
        tuple(map(statistics.median, zip(*times, strict=True)))
        for times in zip(*rounds[1:], strict=True)
    ]
    print_head("Start-up", "", "processor s", "ratio", "wall s", "ratio")
    base_processor, base_wall = medians[0]
    for name, (processor, wall) in zip(commands, medians, strict=True):
        print_row(name, processor, processor / base_processor, wall, wall / base_wall)


def seconds(command):
    """Return the processor time and the wall time of a command."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall
