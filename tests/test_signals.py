"""Stopping in good order, whatever Python is doing when the signal comes."""

import os
import signal
import subprocess
import sys

import pytest

from sjdvp.errors import Interrupted
from sjdvp.runs.job_queue import TaskQueue
from sjdvp.runs.signals import STOPPING, raise_if_stopped, stoppable

pytestmark = pytest.mark.process


class Dying:
    """An object whose finaliser a signal interrupts: Python prints the exception and goes on."""

    def __init__(self, signum):
        self.signum = signum

    def __del__(self):
        os.kill(os.getpid(), self.signum)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("signum", STOPPING)
def test_a_signal_swallowed_by_a_finaliser_stops_the_run_all_the_same(signum):
    source = TaskQueue(lambda wait: None, lambda prompt: [])
    with pytest.raises(Interrupted) as stopped, stoppable():
        dying = Dying(signum)
        del dying
        source.take(wait=False)
    assert stopped.value.signum == signum
    with stoppable():
        raise_if_stopped()  # what an earlier run heard is past


STRUCK = """
import importlib.abc, os, signal, sys

class Strike(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "sjdvp_cli.app":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # as a terminal leaves it
sys.meta_path.insert(0, Strike())
from sjdvp_cli.__main__ import start
start()
"""


def test_ctrl_c_while_modules_are_read_leaves_no_traceback():
    done = subprocess.run([sys.executable, "-c", STRUCK], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
