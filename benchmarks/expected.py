"""Expected step times, counted on the meta device: for GPUs, and here beside measured ones."""

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from benchmarks.models import LARGE, large, large_config, small, small_config
from benchmarks.timing import clock, milliseconds, print_head, print_row
from sjdvp.engine.engine import Engine
from sjdvp.engine.estimate import CARDS, Machine, counted, estimate_on
from sjdvp.models.layers import packed
from sjdvp.models.random_weights import open_random_model, tiny
from sjdvp.models.shapes import shape_of
from sjdvp.profiles import list_profiles, resolve

META = torch.device("meta")
COPIED = 2**28  # bytes


def cards(options):
    """What to expect of each profile on each card; `sjdvp doctor --card` says more of one."""
    print_head("Batch: window by arithmetic, expected step in ms", "profile, window", *CARDS)
    for profile in list_profiles({}):
        config = resolve(profile.name, {}).config
        cells = [_cell(estimate_on(config, card)) for card in CARDS.values()]
        print_row(f"{profile.name}, {config.decoder.width}", *cells)


def _cell(found):
    if not found.fits:
        return "–"
    first, last = (f"{1e3 * seconds:.1f}" for seconds in found.step_s)
    return f"{found.batch_size}: {found.window_by_arithmetic}, {first} to {last}"


def expected(options):
    """The expected time of a step with this CPU's numbers, and the measured one, both at best."""
    machine = measure_cpu()
    print(
        f"\n{machine.bytes_per_s / 1e9:.1f} GB/s, {machine.flops_per_s / 1e9:.0f} GFLOP/s, "
        f"{1e6 * machine.launch_s:.1f} us an operation"
    )
    print_head(
        "A step, expected and measured", "model, decoder, window", "expected ms", "ms", "ratio"
    )
    small_shape = shape_of("emoji")
    for name, shape, config, make in (
        ("embedded, best, 16", small_shape, small_config("best", 16), partial(small, "best", 16)),
        ("embedded, ar, 1", small_shape, small_config("ar", 1), partial(small, "ar", 1)),
        ("365 M, best, 32", LARGE, large_config("best", 32), partial(large, torch.float32, 32)),
        ("365 M, ar, 1", LARGE, large_config("ar", 1), partial(large, torch.float32, 1)),
    ):
        loop = make()
        for _ in range(2):
            loop.step()
        ms = 1e3 * machine.seconds(step_work(shape, config, loop.kv_bucket()))
        measured = min(milliseconds(loop.step) for _ in range(4 * options.repeats))
        print_row(name, ms, measured, ms / measured)


def step_work(shape, config, kv_length):
    """Count a step of a model of that shape."""
    engine = Engine(open_random_model(shape, config, META, torch.float32), config, 1)
    with counted() as work:
        engine.advance(kv_length)
    return work


def measure_cpu():
    """Return this CPU's numbers: a large copy, products of cold weights, a step of a tiny model."""
    source = torch.zeros(COPIED, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy_s = best_of(lambda: target.copy_(source))
    side, n_rows = 1024, 64
    x = torch.randn(n_rows, side)
    layers = [packed(nn.Linear(side, side, bias=False)) for _ in range(16)]
    product_s = best_of(lambda: [layer(x) for layer in layers]) / len(layers)
    return Machine(2 * COPIED / copy_s, 2 * n_rows * side**2 / product_s, _launch_s())


def _launch_s():
    config = small_config("best", 2)
    shape = replace(tiny(shape_of("emoji")), vocab_size=64)
    engine = Engine(open_random_model(shape, config, torch.device("cpu"), torch.float32), config, 1)
    kv_length = engine.runner.kv_buckets[0]
    with torch.inference_mode():
        step_s = best_of(lambda: engine.advance(kv_length))
    return step_s / len(step_work(shape, config, kv_length).operations)


def best_of(work, repeats=20):
    work()
    times = []
    for _ in range(repeats):
        started = clock()
        work()
        times.append(clock() - started)
    return min(times)
