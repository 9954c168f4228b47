"""Times and tables. The time of one thread is its processor seconds: what a clock shows on a machine with nothing else to do."""

import statistics
import time

import torch


def clock():
    """Return seconds: of the processor for one thread, of the wall for several, which then need a quiet machine."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


class Timed:
    """A callable that adds up the milliseconds spent in it; in all else the object it wraps."""

    def __init__(self, inner):
        self.inner, self.ms = inner, 0.0

    def __call__(self, *args):
        started = clock()
        out = self.inner(*args)
        self.ms += 1e3 * (clock() - started)
        return out

    def __getattr__(self, name):
        return getattr(self.inner, name)


def ms(work):
    timed = Timed(work)
    timed()
    return timed.ms


def outside(loop):
    """Take one step; return the milliseconds spent outside the forward."""
    before = loop.forward.ms
    return ms(loop.step) - (loop.forward.ms - before)


def in_turns(repeats, **measures):
    """Return the median and the interquartile range of what each function returns, called in turns after one round to warm up."""
    rounds = [{name: measure() for name, measure in measures.items()} for _ in range(repeats + 1)][
        1:
    ]
    return {name: spread([each[name] for each in rounds]) for name in measures}


def spread(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return Figure(middle, high - low)


class Figure(float):
    """A median that is printed with its interquartile range."""

    def __new__(cls, median, iqr):
        self = super().__new__(cls, median)
        self.iqr = iqr
        return self

    def __str__(self):
        digits = 0 if self >= 100 else 1
        return f"{float(self):.{digits}f} ± {self.iqr:.{digits}f}"


def head(title, *columns):
    print(f"\n## {title}\n\n{_line(columns)}\n{_line(['---'] * len(columns))}", flush=True)


def row(*cells):
    print(_line(f"{cell:.2f}" if type(cell) is float else cell for cell in cells), flush=True)


def _line(cells):
    return f"| {' | '.join(map(str, cells))} |"
