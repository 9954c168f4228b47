"""Several decoders around one backbone: the weights are loaded once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sjdvp.config import RunConfig
from sjdvp.engine.devices import pick_batch_size
from sjdvp.engine.engine import Engine
from sjdvp.engine.loading import load_model
from sjdvp.engine.memory import must_fit
from sjdvp.interfaces import ImageModel


@contextmanager
def open_engines(
    configs: Sequence[RunConfig], make: Callable[[ImageModel, RunConfig, int], Engine] = Engine
) -> Iterator[list[Engine]]:
    """Load the model that all of `configs` name, and put an engine for each around it, while the context lasts.

    `make` is called for one configuration after the other, in their order.
    """
    model = load_model(configs[0])
    what, hint = (
        f"the caches of {len(configs)} decoders at a time",
        "compare fewer, or with a smaller --batch-size",
    )
    with must_fit(what, model.device, hint):
        yield [make(model, config, pick_batch_size(config, model)) for config in configs]
