"""What every test shares: one thread, because two threads on a busy machine wait for each other longer than they work."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
