"""The command line in this process: run a line, read its streams."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sjdvp_cli.app import run


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


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
