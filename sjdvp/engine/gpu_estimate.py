"""Memory and step times of a profile on a GPU that is not here, in the full shape of its model."""

from dataclasses import dataclass

import torch

from sjdvp import rng
from sjdvp.config import RunConfig
from sjdvp.decode.step import admit
from sjdvp.engine.devices import GPU
from sjdvp.engine.engine import Engine
from sjdvp.engine.estimate import Card, Work, counted, widest_window
from sjdvp.engine.memory import MemoryPlan, memory_plan, usual_batch_size
from sjdvp.models.random_weights import open_random_model
from sjdvp.models.shapes import shape_of

_META = torch.device("meta")
_DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class GpuEstimate:
    """What to expect; times follow from counted bytes and operations and from the data sheet."""

    card: str
    plan: MemoryPlan
    batch_size: int  # 0: does not fit
    window: int
    window_by_arithmetic: int  # see `widest_window`
    step_bytes: float  # read and written by a step at half the cache
    n_operations: int  # of a step
    weights_read_s: float  # no step can be shorter
    step_s: tuple[float, float]  # at the shortest and at the longest KV bucket
    prefill_s: float

    @property
    def fits(self) -> bool:
        """Whether one image fits."""
        return self.batch_size > 0


def estimate_on(config: RunConfig, card: Card) -> GpuEstimate:
    """Load, start an image and take a step at each KV bucket, on the meta device, and count.

    Raises ConfigError when the shape of the profile's model is unknown.
    """
    model = open_random_model(shape_of(config.profile), config, _META, _DTYPE)
    plan = memory_plan(model, config, card.memory)
    batch_size = min(plan.largest_batch, usual_batch_size(torch.device(GPU)))
    machine = card.machine
    engine = Engine(model, config, max(1, batch_size))
    with counted() as prefill:
        logits_1V = engine.runner.prefill(0, model.prompt(""))
        admit(engine.decoder, engine.state, [0], logits_1V, rng.keys([0], _META))
    steps = [_step(engine, kv_length) for kv_length in engine.runner.kv_buckets]
    middle = steps[(len(steps) - 1) // 2]
    return GpuEstimate(
        card=card.name,
        plan=plan,
        batch_size=batch_size,
        window=config.decoder.width,
        window_by_arithmetic=widest_window(
            machine, engine.batch_size * engine.runner.n_branches, _DTYPE.itemsize
        ),
        step_bytes=middle.n_bytes,
        n_operations=len(middle.operations),
        weights_read_s=model.n_weights * _DTYPE.itemsize / machine.bytes_per_s,
        step_s=(machine.seconds(steps[0]), machine.seconds(steps[-1])),
        prefill_s=machine.seconds(prefill),
    )


def _step(engine: Engine, kv_length: int) -> Work:
    with counted() as work:
        engine.advance(kv_length)
    return work
