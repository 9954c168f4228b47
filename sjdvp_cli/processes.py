"""Which processes generate images: this one, or worker processes on several devices."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from sjdvp.config import RunConfig
from sjdvp.errors import ConfigError
from sjdvp.events import Listener, Note
from sjdvp.jobs import ImageGenerator, OpenGenerator
from sjdvp.text import counted
from sjdvp_cli.options import option

_running = option("Running")


@dataclass(frozen=True, slots=True)
class Processes:
    """How many processes, and on which devices."""

    gpus: Annotated[
        str | None,
        _running(
            "--gpus",
            metavar="all|N|0,2",
            help="Start one process on each of these GPUs.",
            show_default="one process",
        ),
    ] = None
    workers: Annotated[
        int | None,
        _running(
            "--workers",
            metavar="N",
            min=1,
            help="Start N processes on the same --device.",
            show_default="one process",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.gpus is not None and self.workers is not None:
            raise ConfigError(
                "--gpus and --workers both set the number of processes", "give one of them"
            )
        if self.gpus is not None:
            parse_gpus(self.gpus)

    def check(self, config: RunConfig) -> None:
        """Raise ConfigError when the settings allow only one process."""
        if config.run.device_map and (self.gpus is not None or self.workers is not None):
            raise ConfigError(
                "--device-map auto is one process on all GPUs",
                "leave out --device-map, or --gpus and --workers",
            )

    def generator(
        self, config: RunConfig, open_one: OpenGenerator, listen: Listener
    ) -> OpenGenerator:
        """Return what opens the generator of a run; each process opens `open_one`.

        `listen` gets Notes about the value of `auto` and about workers that died.
        """

        @contextmanager
        def open_here(config: RunConfig) -> Iterator[ImageGenerator]:
            with open_one(config) as generator:
                if description := getattr(generator, "description", ""):
                    listen(Note("info", description))
                yield generator

        if self.gpus is None and self.workers is None:
            return open_here
        devices = self.devices(config)

        def warn(message: str) -> None:
            listen(Note("warning", message))

        @contextmanager
        def open_several(config: RunConfig) -> Iterator[ImageGenerator]:
            from sjdvp.workers.pool import open_workers

            n_processes = counted(len(devices), "process", "processes")
            listen(Note("info", f"{n_processes}: {', '.join(devices)}"))
            with open_workers(config, devices, open_one, warn) as workers:
                yield workers

        return open_several

    def devices(self, config: RunConfig) -> list[str]:
        """Return the device of each process."""
        if self.workers is not None:
            return [config.run.device] * self.workers
        if config.run.device != "auto":
            raise ConfigError(
                f"--gpus and --device {config.run.device} both set devices", "leave --device out"
            )
        return [f"cuda:{index}" for index in parse_gpus(self.gpus or "") or range(_visible_gpus())]


def parse_gpus(text: str) -> list[int]:
    """Read `all` (as no numbers), how many GPUs (`2`) or which (`0,2`).

    GPUs are numbered as CUDA_VISIBLE_DEVICES leaves them.
    """
    numbers = [] if text == "all" else text.removesuffix(",").split(",")
    if not all(number.isascii() and number.isdigit() and len(number) < 4 for number in numbers):
        raise ConfigError(
            f"--gpus must be all, how many, or which GPUs, found {text!r}",
            "for example --gpus 0,2",
        )
    chosen = (
        list(range(int(text)))
        if len(numbers) == 1 and "," not in text
        else [int(number) for number in numbers]
    )
    if text != "all" and (not chosen or len(set(chosen)) < len(chosen)):
        raise ConfigError(
            f"--gpus {text} names no GPU, or one of them twice",
            "for example --gpus 2 or --gpus 0,2",
        )
    return chosen


def _visible_gpus() -> int:
    from sjdvp.engine.devices import visible_gpus

    return visible_gpus()
