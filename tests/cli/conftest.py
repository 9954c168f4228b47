"""The command line in this process: run a line, read its streams."""

import io
import os
import re
import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from sjdvp.errors import StorageError
from sjdvp.jobs import ImageResult, token_digest
from sjdvp_cli.app import run
from tests.analysis.fake_sums import write_sums

GOLDEN = Path(__file__).parent / "golden"
SHARED = "Settings", "Model", "Sampling", "Decoding", "Running"
STATS = {"nfe": 10, "image_tokens": 256, "drafted": 100, "accepted": 60, "latency_s": 0.1}


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def settings_of(help_text: str) -> str:
    """Return the part of a help that many commands share: the panels of the settings."""
    sections = help_text.split("\n\n")
    return "\n\n".join(s.strip("\n") for s in sections if s.lstrip("\n").startswith(SHARED)) + "\n"


def own_help(help_text: str) -> str:
    """Return a help with only the names of the options that many commands share."""
    sections = help_text.split("\n\n")
    for i, section in enumerate(sections):
        title, colon, options = section.lstrip("\n").partition(":\n")
        if colon and title in SHARED:
            names = re.findall(r"^  (?:-\w, )?(--[\w-]+)", options, re.MULTILINE)
            sections[i] = f"{title}: {' '.join(names)}"
    return "\n\n".join(sections)


@pytest.fixture
def sjdvp(capsys, monkeypatch, tmp_path) -> Callable[..., Result]:
    """Run `sjdvp` with some arguments, without any settings of the person who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


class StandIn:
    """Generates the seed's colour; a prompt that says `fail` fails, `full` finds the disk full,
    `ctrl-c` is one.
    """

    def generate(self, source):
        import numpy as np

        while (job := source.take(wait=True)) is not None:
            if "full" in job.prompt:
                raise StorageError("no space left on the disk", "make room")
            if "ctrl-c" in job.prompt:
                os.kill(os.getpid(), signal.SIGINT)
                continue
            if "fail" in job.prompt:
                yield ImageResult(
                    job,
                    None,
                    dict.fromkeys(STATS),
                    {"type": "ImageError", "message": "not finite", "hint": ""},
                )
            else:
                colour = job.seed % 256
                image_HWC, tokens = np.full((8, 8, 3), colour, np.uint8), (colour,) * 256
                stats = STATS | {"token_sha256": token_digest(tokens)}
                yield ImageResult(job, image_HWC, stats, tokens=tokens)


@pytest.fixture
def generator(monkeypatch):
    """Replace the engine by a fake; gives the configurations it was opened with."""
    opened = []

    def open_generator(config):
        opened.append(config)
        return nullcontext(StandIn())

    monkeypatch.setattr("sjdvp_cli.generate.open_generator", open_generator)
    monkeypatch.setattr("sjdvp_cli.generate.check_model", lambda config: None)

    def open_watched(configs, sums):
        for path in sums:
            write_sums(path)
        return nullcontext([StandIn() for _ in configs])

    monkeypatch.setattr(
        "sjdvp_cli.compare.open_generators",
        lambda configs: nullcontext([StandIn() for _ in configs]),
    )
    monkeypatch.setattr("sjdvp_cli.analyze.open_watched", open_watched)
    return opened
