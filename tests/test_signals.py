"""Stopping in good order, whatever Python is doing when the signal comes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from sjdvp.errors import Interrupted
from sjdvp.runs.signals import STOPPING, raise_if_stopped, stoppable
from sjdvp.runs.source import TaskSource


class Dying:
    """Something whose finaliser a signal strikes: Python prints what is raised there, and goes on."""

    def __init__(self, signum):
        self.signum = signum

    def __del__(self):
        os.kill(os.getpid(), self.signum)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("signum", STOPPING)
def test_a_signal_swallowed_by_a_finaliser_stops_the_run_all_the_same(signum):
    source = TaskSource(lambda wait: None, lambda prompt: [])
    with pytest.raises(Interrupted) as stopped, stoppable():
        dying = Dying(signum)
        del dying
        source.take(wait=False)
    assert stopped.value.signum == signum
    with stoppable():
        raise_if_stopped()  # what an earlier run heard is past


def test_ctrl_c_while_modules_are_read_leaves_no_traceback(tmp_path):
    """At any moment of the first second: the process dies of the signal, or says that it was interrupted."""
    for delay in (0.02, 0.1, 0.25, 0.5):
        process = subprocess.Popen(
            [sys.executable, "-m", "sjdvp_cli", "generate", "--prompt", "a cat", "-o", str(tmp_path / "out"), "--device", "cpu"],
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        if delay > 0.05:  # before, it is Python's own start
            assert b"Traceback" not in told
        assert process.returncode in (-signal.SIGINT, 130)
