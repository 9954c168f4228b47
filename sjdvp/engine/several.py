"""Several decoders around one backbone: the weights are loaded once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sjdvp.backbones import open_backbone
from sjdvp.config import RunConfig
from sjdvp.engine.devices import pick_batch_size, pick_device, pick_dtype, use_few_threads
from sjdvp.engine.engine import Engine
from sjdvp.interfaces import Backbone


@contextmanager
def open_engines(
    configs: Sequence[RunConfig], make: Callable[[Backbone, RunConfig, int], Engine] = Engine
) -> Iterator[list[Engine]]:
    """Load the backbone that all of `configs` name, and put an engine for each around it, while the context lasts.

    `make` is called for one configuration after the other, in their order.
    """
    first = configs[0]
    device = pick_device(first.run.device)
    backbone = open_backbone(first.model, device, pick_dtype(first.model.dtype, device))
    use_few_threads(backbone)
    yield [make(backbone, config, pick_batch_size(config, backbone)) for config in configs]
