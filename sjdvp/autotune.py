"""`window: auto` and `batch_size: auto`: measured once per machine and model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch

from sjdvp.bench import Point, bench, best
from sjdvp.config import RunConfig
from sjdvp.engine.devices import pick_device
from sjdvp.engine.disk_cache import Fastest, load_fastest, save_fastest
from sjdvp.engine.loading import load_model
from sjdvp.engine.memory import largest_batch, usual_batch_size
from sjdvp.engine.oom import release_memory

_WINDOWS = (8, 16, 32)
_STEPS = 48  # about one image of the embedded model, the first image rows of a large one


def pick_window(config: RunConfig, tell: Callable[[str], None]) -> int:
    """Return the window with the most images per second for `config`, whose window is auto.

    With batch size 1 that is the window of least latency. Where nothing is stored it is measured,
    which takes the time of loading the model and of a few hundred steps. `tell` gets a message.
    """
    device = pick_device(config.run.device)
    fastest = load_fastest(config, device)
    if fastest:
        tell(f"window auto: {fastest.window}, as measured before on this machine")
        return fastest.window
    windows = ", ".join(map(str, _windows(device)))
    tell(
        f"window auto: measuring windows {windows}, once on this machine for this model and decoder"
    )
    return _measure(config, device).window


def _windows(device: torch.device) -> tuple[int, ...]:
    """Return the windows to choose from; 64 is nearly free for one image on a GPU."""
    return _WINDOWS if device.type == "cpu" else (*_WINDOWS, 64)


def _measure(config: RunConfig, device: torch.device) -> Fastest:
    model = load_model(config)
    if config.run.batch_size == "auto":
        fits = largest_batch(model, config.with_window(max(_windows(device))))
        batch_sizes = sorted({1, min(usual_batch_size(device), fits)})
    else:
        batch_sizes = [config.run.batch_size]
    points = list(bench(model, config, batch_sizes, _windows(device), _STEPS, trained=True))
    remember(config, device, points)
    del model
    release_memory()
    return _fastest(points)


def remember(config: RunConfig, device: torch.device, points: Sequence[Point]) -> None:
    """Store the fastest of the measured points, for each question that they answer.

    A question is a window, or auto, with a batch size, or auto. They answer `window: auto` only if
    all windows that it chooses from were measured.
    """
    measured = sorted({point.window for point in points})
    windows: list[int | Literal["auto"]] = [*measured]
    if {*_windows(device)} <= {*measured}:
        windows.append("auto")
    sizes: list[int | Literal["auto"]] = ["auto", *sorted({point.batch_size for point in points})]
    for window in windows:
        for size in sizes:
            candidates = [
                point
                for point in points
                if window in ("auto", point.window) and size in ("auto", point.batch_size)
            ]
            if len(candidates) > 1:
                decoder = replace(config.decoder, window=window)
                question = replace(
                    config, decoder=decoder, run=replace(config.run, batch_size=size)
                )
                save_fastest(question, device, _fastest(candidates))


def _fastest(points: Sequence[Point]) -> Fastest:
    point = best(points)
    return Fastest(point.window, point.batch_size)
