"""Two runs over the same prompts, image by image: how many times less one costs, and how sure that is."""

import random
from collections import defaultdict
from dataclasses import dataclass

from sjdvp.report.load import Run
from sjdvp.report.metrics import number, quantile

RESAMPLES = 1000
_SEED = 0  # equal logs give equal intervals


@dataclass(frozen=True, slots=True)
class Gain:
    """A ratio of costs, above 1 when the run is cheaper; `low` and `high` bound its 95 % bootstrap interval."""

    value: float
    low: float | None
    high: float | None


def gain(base: Run, run: Run, key: str) -> Gain | None:
    """Return how many times less `run` costs than `base` in the measurement `key`, over the images that both have.

    The interval resamples prompts, with all their images: images of one prompt are alike. None when there is nothing to compare;
    one prompt has no interval.
    """
    if base is run:
        return None
    sums: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    mine, theirs = run.ok, base.ok
    for image in mine.keys() & theirs.keys():
        cost, before = number(mine[image], key), number(theirs[image], key)
        if cost is not None and before is not None:
            sums[image[0]][0] += before
            sums[image[0]][1] += cost
    pairs = [sums[prompt] for prompt in sorted(sums)]
    if not pairs or not all(cost > 0 for _, cost in pairs):
        return None
    value = _ratio(pairs)
    if len(pairs) == 1:
        return Gain(value, None, None)
    dice = random.Random(_SEED)
    drawn = [_ratio(dice.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES)]
    return Gain(value, quantile(drawn, 0.025), quantile(drawn, 0.975))


def same_tokens(base: Run, run: Run) -> float | None:
    """Return the share of images whose tokens are those of `base`; None when no image can be compared."""
    mine, theirs = run.ok, base.ok
    both = [
        (mine[image].get("token_sha256"), theirs[image].get("token_sha256"))
        for image in mine.keys() & theirs.keys()
    ]
    known = [ours == other for ours, other in both if ours and other]
    return sum(known) / len(known) if known else None


def _ratio(pairs: list[list[float]]) -> float:
    return sum(before for before, _ in pairs) / sum(cost for _, cost in pairs)
