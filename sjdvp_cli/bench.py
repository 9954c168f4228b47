"""`sjdvp bench`: how long a decode step takes on this machine."""

import dataclasses
import json
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sjdvp.config import RunConfig
from sjdvp.errors import ConfigError, DeviceError
from sjdvp_cli.options import option, takes_options
from sjdvp_cli.settings import PROFILE, DecoderSettings
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    import torch

    from sjdvp.bench import Point
    from sjdvp.models.base import ImageModel

_what = option("Measurement")
_HEADINGS = (
    "batch", "window", "step ms", "± ms", "forward ms", "step/forward", "weights ms", "memory ms",
    "arithmetic ms", "step/roof", "tokens/NFE", "images/s", "MiB/slot", "weights",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured, and on which weights."""

    batch_sizes: Annotated[
        str,
        _what("--batch-sizes", metavar="N,N,…", help="Batch sizes to measure, one after another."),
    ] = "1,2,4,8"
    windows: Annotated[
        str | None,
        _what(
            "--windows",
            metavar="N,N,…",
            help="Windows to measure, one after another.",
            show_default=PROFILE,
        ),
    ] = None
    steps: Annotated[
        int, _what("--steps", metavar="N", min=5, help="Decode steps that are timed per point.")
    ] = 20
    random_weights: Annotated[
        Literal["full", "tiny"] | None,
        _what(
            "--random-weights",
            metavar="full|tiny",
            help="Use random weights, in the shape of the profile's model or tiny.",
            show_default="real weights",
        ),
    ] = None
    as_json: Annotated[bool, _what("--json", help="Print only the JSON object, no table.")] = False


@takes_options
def command(measurement: Measurement, settings: DecoderSettings) -> int:
    """Measure a decode step against its forward pass and the hardware's limits.

    The last line on stdout is one JSON object.
    """
    config = settings.resolve().config
    batch_sizes = read_numbers("--batch-sizes", measurement.batch_sizes)
    chosen = measurement.windows is not None and config.decoder.preset != "ar"
    windows = (
        read_numbers("--windows", str(measurement.windows)) if chosen else [config.decoder.width]
    )

    from sjdvp.bench import bench, best, remember

    model = _open(config, measurement.random_weights)
    trained = measurement.random_weights is None
    points = list(bench(model, config, batch_sizes, windows, measurement.steps, trained=trained))
    left_out = set(product(batch_sizes, windows)) - {
        (point.batch_size, point.window) for point in points
    }
    for batch_size, window in sorted(left_out):
        typer.echo(
            f"sjdvp: left out: batch {batch_size}, window {window} needs more memory than is free",
            err=True,
        )
    if not points:
        raise DeviceError(
            "none of these batch sizes fits into the memory",
            "give smaller --batch-sizes; see sjdvp doctor",
        )
    if trained:
        remember(config, model.device, points)
    if not measurement.as_json:
        show_table(_HEADINGS, map(_row, points))
    fastest = best(points)
    typer.echo(
        json.dumps(
            {
                **dataclasses.asdict(fastest),
                "points": [dataclasses.asdict(point) for point in points],
            }
        )
    )
    return 0


def read_numbers(flag: str, text: str) -> list[int]:
    """Read `1,4,8`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(
        word.isascii() and word.isdigit() and 0 < int(word) <= 1024 for word in words
    ):
        raise ConfigError(
            f"{flag} must be numbers from 1 to 1024, found {text!r}", f"for example {flag} 1,4,8"
        )
    return [int(word) for word in words]


def _open(config: RunConfig, random_weights: Literal["full", "tiny"] | None) -> "ImageModel":
    from sjdvp.engine.devices import pick_device, pick_dtype, use_device, use_few_threads
    from sjdvp.engine.loading import load_model
    from sjdvp.engine.oom import must_fit
    from sjdvp.models.random_weights import open_random_model, tiny
    from sjdvp.models.shapes import shape_of

    if random_weights is None:
        return load_model(config)
    if config.run.device_map:
        raise ConfigError(
            "random weights run on one device", "leave out --device-map", "run.device_map"
        )
    device: torch.device = pick_device(config.run.device)
    shape = shape_of(config.profile)
    use_device(device)
    with must_fit("the weights", device):
        dtype = pick_dtype(config.model.dtype, device)
        model = open_random_model(
            tiny(shape) if random_weights == "tiny" else shape, config, device, dtype
        )
    use_few_threads(model)
    return model


def _row(point: "Point") -> tuple[str, ...]:
    times = (point.step_ms, point.step_iqr_ms, point.forward_ms)
    roof = (point.weights_read_ms, point.memory_ms, point.arithmetic_ms)
    return (
        str(point.batch_size),
        str(point.window),
        *(f"{value:.1f}" for value in times),
        f"{point.step_over_forward:.2f}",
        *(f"{value:.1f}" for value in roof),
        f"{point.step_ms / point.roof_ms:.1f}",
        "–" if point.tokens_per_nfe is None else f"{point.tokens_per_nfe:.2f}",
        "–" if point.images_per_s is None else f"{point.images_per_s:.3f}",
        f"{point.slot_bytes / 2**20:.1f}",
        point.quantize or point.dtype,
    )
