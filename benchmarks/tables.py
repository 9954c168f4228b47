"""The tables of single steps. Alternatives take turns; medians, with the interquartile range."""

from functools import partial

from benchmarks.counting import host_reads, passes
from benchmarks.models import ACCEPT, large, small
from benchmarks.models import published as published_loop
from benchmarks.models import wide as wide_loops
from benchmarks.timing import Stopwatch, in_turns, milliseconds, outside_ms, print_head, print_row

WIDE = (65_536, 131_072)
EMBEDDED = (("ar", 1), ("sjd", 16), ("sjdvp", 16), ("best", 16), ("best", 32))


def steps(options):
    """A decode step, and the bare forward pass of the same shapes."""
    print_head(
        "A decode step and the bare forward pass",
        "model", "dtype", "decoder, window", "forward ms", "step ms", "ratio", "outside ms",
        "passes", "host reads",
    )  # fmt: skip
    compiled = options.step == "compile"
    for *names, make in [*embedded_loops(options), *large_loops(options)]:
        loop = make()
        reads = "–" if compiled else host_reads(loop.step)  # counting would compile it again
        forward, step = partial(milliseconds, loop.bare_forward), partial(milliseconds, loop.step)
        ms = in_turns(options.repeats, forward=forward, step=step)
        rest = in_turns(options.repeats, outside=partial(outside_ms, loop))["outside"]
        ratio = ms["step"] / ms["forward"]
        print_row(*names, ms["forward"], ms["step"], ratio, rest, passes(loop.engine), reads)


def embedded_loops(options):
    for decoder, window in EMBEDDED:
        if options.step == "eager" or decoder != "ar":
            make = partial(small, decoder, window, step=options.step)
            yield f"embedded, {options.step}", "float32", f"{decoder}, {window}", make


def large_loops(options):
    for dtype in options.dtypes:
        for window in (1, *options.windows):
            decoder = "best" if window > 1 else "ar"
            yield "365 M", _name(dtype), f"{decoder}, {window}", partial(large, dtype, window)


def published(options):
    """Our step and one in the published style: 365 M, vocabulary 65,536, batch 1, guidance."""
    print_head(
        f"Our step and a loop in the published style ({ACCEPT} draft tokens accepted in each step)",
        "dtype, window", "published ms", "ours ms", "published / ours", "outside: published ms",
        "ours ms", "host reads: published", "ours",
    )  # fmt: skip
    for dtype in options.dtypes:
        for window in options.windows:
            ours, theirs = large(dtype, window), published_loop(dtype, window)
            theirs.forward = Stopwatch(theirs.forward)
            reads = host_reads(theirs.step), host_reads(ours.step)
            ms = _in_turns(options, milliseconds, theirs.step, ours.step)
            rest = _in_turns(options, outside_ms, theirs, ours)
            print_row(f"{_name(dtype)}, {window}", *ms, ms[0] / ms[1], *rest, *reads)


def wide(options):
    """Dense and sparse distributions: 365 M, preset best, wide vocabularies."""
    print_head(
        "Wide vocabularies: dense and sparse distributions",
        "vocabulary", "dtype, window", "slot: dense MB", "sparse MB", "outside: dense ms",
        "sparse ms", "dense / sparse", "step: dense ms", "sparse ms", "dense / sparse",
    )  # fmt: skip
    for dtype in options.dtypes:
        for vocab_size in WIDE:
            for window in options.windows:
                dense, sparse = wide_loops(dtype, vocab_size, window)
                mb = [f"{loop.state_mb():.1f}" for loop in (dense, sparse)]
                rest = _in_turns(options, outside_ms, dense, sparse)
                ms = _in_turns(options, milliseconds, dense.step, sparse.step)
                names = f"{vocab_size:,}", f"{_name(dtype)}, {window}"
                print_row(*names, *mb, *rest, rest[0] / rest[1], *ms, ms[0] / ms[1])


def latency(options):
    """One image: the best lossless preset and plain decoding."""
    print_head(
        "Latency of one image, 365 M",
        "dtype, window", "ar ms", "step ms", "NFE ratio", "speedup", "speedup / NFE ratio",
    )  # fmt: skip
    for dtype in options.dtypes:
        for window in options.windows:
            ar, best = large(dtype, 1), large(dtype, window)
            ar_ms, best_ms = _in_turns(options, milliseconds, ar.step, best.step)
            nfe = float(min(ACCEPT, window - 1) + 1)
            speedup = nfe * ar_ms / best_ms
            print_row(f"{_name(dtype)}, {window}", ar_ms, best_ms, nfe, speedup, speedup / nfe)


def _in_turns(options, measure, first, second):
    turns = {"first": partial(measure, first), "second": partial(measure, second)}
    return tuple(in_turns(options.repeats, **turns).values())


def _name(dtype):
    return str(dtype).removeprefix("torch.")
