"""Which decoders a diagnosis looks at: those that are named, and small grids around verification prediction. Imports no torch."""

from collections.abc import Mapping, Sequence

from sjdvp.compare import Lane, Resolve, plan_lanes

_GROWTH = {"prior.kind": ["growth"]}  # the published rule alone: the adaptive one would switch itself off where it loses
_AROUND = {  # one setting at a time, the others as they are
    "prior.rises": ["1", "2", "3", "4"],
    "prior.history": ["3", "4", "6", "8"],
    "prior.decay": ["0.25", "0.5", "1"],
    "prior.beta": ["0.25", "0.5", "1", "2"],
}
_WINDOWS = {"window": ["8", "16", "32", "64"]}


def grid_lanes(resolve: Resolve) -> tuple[Lane, ...]:
    """Return lanes that vary N, L, decay, beta and the window of `sjdvp`, one at a time, and the windows of `sjd`."""
    lanes = plan_lanes(["sjd"], _WINDOWS, resolve)
    for varied in ({}, _WINDOWS, *({key: values} for key, values in _AROUND.items())):
        lanes += plan_lanes(["sjdvp"], {**_GROWTH, **varied}, resolve)
    return lanes


def plan(decoders: Sequence[str], sweep: Mapping[str, Sequence[str]], *, grids: bool, resolve: Resolve) -> tuple[Lane, ...]:
    """Return the lanes of a diagnosis, each decoder once, whatever its names."""
    lanes = plan_lanes(decoders, sweep, resolve) + (grid_lanes(resolve) if grids else ())
    distinct = {lane.config.decoder: lane for lane in reversed(lanes)}
    return tuple(lane for lane in lanes if distinct[lane.config.decoder] is lane)
