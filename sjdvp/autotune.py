"""`window: auto` and `batch_size: auto`: a short measurement, made once on a machine for a model, and kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch

from sjdvp.bench import Point, bench, best
from sjdvp.config import RunConfig
from sjdvp.engine.calibration import Choice, keep, kept
from sjdvp.engine.devices import pick_device, usual_batch_size
from sjdvp.engine.footprint import largest_batch
from sjdvp.engine.loading import load_model
from sjdvp.engine.memory import release_memory

_WINDOWS = (8, 16, 32)
_STEPS = 48  # about one image of the embedded model, the first rows of a large one


def pick_window(config: RunConfig, tell: Callable[[str], None]) -> int:
    """Return the window with the most images a second for `config`, whose window is auto; measures it where nothing is kept.

    With a batch size of 1 that is the window of least latency. Takes the time of loading the model and of some hundred steps.
    """
    device = pick_device(config.run.device)
    known = kept(config, device)
    if known is None:
        tell(
            f"window auto: measuring windows {', '.join(map(str, _WINDOWS))}, once on this machine for this model and decoder"
        )
        known = _measure(config, device)
    else:
        tell(f"window auto: {known.window}, as measured before on this machine")
    return known.window


def _measure(config: RunConfig, device: torch.device) -> Choice:
    model = load_model(config)
    asked, most = config.run.batch_size, largest_batch(model, config.with_window(max(_WINDOWS)))
    batch_sizes = sorted({1, min(usual_batch_size(device), most)}) if asked == "auto" else [asked]
    points = list(bench(model, config, batch_sizes, _WINDOWS, _STEPS, trained=True))
    remember(config, device, points)
    del model
    release_memory()
    return _choice(points)


def remember(config: RunConfig, device: torch.device, points: Sequence[Point]) -> None:
    """Keep the best of what was measured: for each window and, if all that `auto` stands for are among them, over windows."""
    measured = sorted({point.window for point in points})
    # The best of two windows that somebody was curious about is not the best window.
    windows: list[int | Literal["auto"]] = (
        [*measured, "auto"] if {*_WINDOWS} <= {*measured} else [*measured]
    )
    sizes: list[int | Literal["auto"]] = ["auto", *sorted({point.batch_size for point in points})]
    for window in windows:
        for size in sizes:
            fits = [
                point
                for point in points
                if window in ("auto", point.window) and size in ("auto", point.batch_size)
            ]
            if len(fits) > 1:  # one alone is no choice
                decoder, run = (
                    replace(config.decoder, window=window),
                    replace(config.run, batch_size=size),
                )
                keep(replace(config, decoder=decoder, run=run), device, _choice(fits))


def _choice(points: Sequence[Point]) -> Choice:
    fastest = best(points)
    return Choice(fastest.window, fastest.batch_size)
