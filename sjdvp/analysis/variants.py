"""Which decoders an analysis observes. Imports no torch."""

from collections.abc import Mapping, Sequence

from sjdvp.compare import Resolve, Variant, plan_variants

_AROUND = {  # one setting at a time, the others as they are
    "prediction.rises": ["1", "2", "3", "4"],
    "prediction.history": ["3", "4", "6", "8"],
    "prediction.decay": ["0.25", "0.5", "1"],
    "prediction.beta": ["0.25", "0.5", "1", "2"],
}
_WINDOWS = {"window": ["8", "16", "32", "64"]}


def grid_variants(resolve: Resolve) -> tuple[Variant, ...]:
    """Return `sjd` with several windows, and `sjdvp` with N, L, decay, beta or window varied."""
    variants = plan_variants(["sjd"], _WINDOWS, resolve)
    for varied in ({}, _WINDOWS, *({key: values} for key, values in _AROUND.items())):
        variants += plan_variants(["sjdvp"], varied, resolve)
    return variants


def plan(
    decoders: Sequence[str], sweep: Mapping[str, Sequence[str]], *, grids: bool, resolve: Resolve
) -> tuple[Variant, ...]:
    """Return the variants of an analysis, each decoder once, whatever its names."""
    variants = plan_variants(decoders, sweep, resolve) + (grid_variants(resolve) if grids else ())
    distinct = {variant.config.decoder: variant for variant in reversed(variants)}
    return tuple(variant for variant in variants if distinct[variant.config.decoder] is variant)
