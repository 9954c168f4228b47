"""The tables of the benchmark but for whole images and start-up. Alternatives take turns; medians of at least five, with the
interquartile range after ±.
"""

from functools import partial

from benchmarks.models import ACCEPT, large, published, small
from benchmarks.passes import passes
from benchmarks.reads import host_reads
from benchmarks.timing import Timed, head, in_turns, ms, outside, row

EMBEDDED = (("ar", 1), ("sjd", 16), ("sjdvp", 16), ("best", 16), ("best", 32))


def steps(options):
    """Figure 1: a step over the bare forward of the same shapes."""
    columns = (
        "model",
        "dtype",
        "decoder, window",
        "forward ms",
        "step ms",
        "ratio",
        "outside ms",
        "passes",
        "reads",
    )
    head("A step over the bare forward", *columns)
    loops = [
        (
            f"embedded, {options.step}",
            "float32",
            f"{decoder}, {window}",
            partial(small, decoder, window, step=options.step),
        )
        for decoder, window in EMBEDDED
        if options.step == "eager" or decoder != "ar"
    ]
    loops += [
        (
            "365 M",
            _name(dtype),
            f"{'best' if window > 1 else 'ar'}, {window}",
            partial(large, dtype, window),
        )
        for dtype in options.dtypes
        for window in (1, *options.windows)
    ]
    for *names, make in loops:
        loop = make()
        reads = (
            host_reads(loop.step) if options.step == "eager" else "–"
        )  # counting would compile it anew
        time = in_turns(
            options.repeats, forward=partial(ms, loop.bare_forward), step=partial(ms, loop.step)
        )
        rest = in_turns(options.repeats, outside=partial(outside, loop))["outside"]
        row(
            *names,
            time["forward"],
            time["step"],
            time["step"] / time["forward"],
            rest,
            passes(loop.engine),
            reads,
        )


def published_style(options):
    """Figure 2: our step against the published style, 365 M, vocabulary 65,536, batch 1 with guidance."""
    columns = (
        "dtype, window",
        "published ms",
        "ours ms",
        "published / ours",
        "outside: published ms",
        "ours ms",
        "reads",
        "ours",
    )
    head(f"Against a loop in the published style ({ACCEPT} drafts stand in each step)", *columns)
    for dtype in options.dtypes:
        for window in options.windows:
            ours, theirs = large(dtype, window), published(dtype, window)
            theirs.forward = Timed(theirs.forward)
            reads = host_reads(theirs.step), host_reads(ours.step)
            time = in_turns(
                options.repeats, theirs=partial(ms, theirs.step), ours=partial(ms, ours.step)
            )
            rest = in_turns(
                options.repeats, theirs=partial(outside, theirs), ours=partial(outside, ours)
            )
            ratio = time["theirs"] / time["ours"]
            row(
                f"{_name(dtype)}, {window}",
                time["theirs"],
                time["ours"],
                ratio,
                rest["theirs"],
                rest["ours"],
                *reads,
            )


def latency(options):
    """Figure 4: one image, the best lossless preset against plain decoding; the figure asked for is 0.8."""
    head(
        "Latency of one image, 365 M",
        "dtype, window",
        "ar ms",
        "step ms",
        "NFE ratio",
        "time ratio",
        "time / NFE ratio",
    )
    for dtype in options.dtypes:
        for window in options.windows:
            plain, best = large(dtype, 1), large(dtype, window)
            time = in_turns(
                options.repeats, plain=partial(ms, plain.step), best=partial(ms, best.step)
            )
            nfe = float(min(ACCEPT, window - 1) + 1)
            gain = nfe * time["plain"] / time["best"]
            row(f"{_name(dtype)}, {window}", time["plain"], time["best"], nfe, gain, gain / nfe)


def _name(dtype):
    return str(dtype).removeprefix("torch.")
