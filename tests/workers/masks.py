"""Print the signal masks that two workers have right after their start: `python -m
tests.workers.masks`.
"""

from pathlib import Path

from sjdvp.config import RunConfig
from sjdvp.workers.pool import open_workers
from tests.workers.generators import open_quick

if __name__ == "__main__":
    with open_workers(RunConfig(), ["cpu", "cpu"], open_quick, print) as workers:
        for worker in workers._workers.values():
            print(Path(f"/proc/{worker.process.pid}/status").read_text(encoding="utf-8"))
