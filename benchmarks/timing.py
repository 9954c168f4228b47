"""Clocks and Markdown tables. With one thread, times are processor seconds."""

import statistics
import time

import torch


def clock():
    """Return seconds: processor time with one thread, wall time with several."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


class Stopwatch:
    """A callable that adds up the milliseconds spent in it; otherwise the object it wraps."""

    def __init__(self, inner):
        self.inner, self.ms = inner, 0.0

    def __call__(self, *args):
        started = clock()
        out = self.inner(*args)
        self.ms += 1e3 * (clock() - started)
        return out

    def __getattr__(self, name):
        return getattr(self.inner, name)


def milliseconds(function):
    timed = Stopwatch(function)
    timed()
    return timed.ms


def outside_ms(loop):
    """Take one step; return the milliseconds spent outside its forward pass."""
    before = loop.forward.ms
    return milliseconds(loop.step) - (loop.forward.ms - before)


def in_turns(repeats, **measures):
    """Call the functions alternately, once to warm up; return the median and spread of each."""
    rounds = [{name: measure() for name, measure in measures.items()} for _ in range(repeats + 1)]
    return {name: summarize([each[name] for each in rounds[1:]]) for name in measures}


def summarize(values):
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


def print_head(title, *columns):
    print(f"\n## {title}\n\n{_line(columns)}\n{_line(['---'] * len(columns))}", flush=True)


def print_row(*cells):
    print(_line(f"{cell:.2f}" if type(cell) is float else cell for cell in cells), flush=True)


def _line(cells):
    return f"| {' | '.join(map(str, cells))} |"
