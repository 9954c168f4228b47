"""From the sums of images to findings about a decoder: shares and means, divided once at the end. Imports no torch."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sjdvp.analysis.names import CANDIDATES
from sjdvp.report.metrics import quantile
from sjdvp.report.pairs import RESAMPLES
from sjdvp.runs.log import ImageKey

Sums = Mapping[
    str, Any
]  # of one image: numbers, and lists of numbers, by the names that `sjdvp.analysis.iterations` gives
Seen = Mapping[ImageKey, Sums]


@dataclass(frozen=True, slots=True)
class Growth:
    """Of the committed tokens that had been looked at before, the share whose probability had grown; None where there was none."""

    tokens: int
    over_life: float | None  # last forward_pass against first forward_pass
    last_look: float | None
    in_a_row: tuple[
        float | None, ...
    ]  # at each of the last 1, 2, ... looks, of those tokens that had as many
    last_look_standing: float | None  # of tokens committed as a draft that stood
    last_look_drawn: (
        float | None
    )  # of tokens drawn in place of a rejected draft, or after the last draft


@dataclass(frozen=True, slots=True)
class Rise:
    """Of the top tokens that had risen `rises` times in a row, the share that rose once more."""

    rises: int
    tokens: int
    again: float | None
    again_by_mass: float | None  # each code counted by its probability


@dataclass(frozen=True, slots=True)
class Distance:
    """Mean total variation between a distribution that was there to draft from, and the distribution that came next at that position."""

    distribution: str
    everywhere: float | None
    at_commit: float | None  # only where the position was committed at that next forward_pass
    by_column: tuple[float | None, ...]  # of the window, at the next forward_pass


@dataclass(frozen=True, slots=True)
class Columns:
    """How drafts fare by their place in the window."""

    tested: tuple[int, ...]
    accepted: tuple[float | None, ...]  # share of those tested: all drafts before them had stood
    overlap: tuple[
        float | None, ...
    ]  # chance to stand, tested or not: 1 - TV(stored distribution, new distribution)


@dataclass(frozen=True, slots=True)
class Interval:
    """A share, with a 95 % bootstrap interval over prompts."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Nats a code, under the distribution that is sampled, without its cuts. RejectionSampling sampling makes the two cancel, but for chance."""

    tokens: int
    log_likelihood: float | None
    entropy: float | None
    surplus: (
        Interval | None
    )  # their sum, as a share of the entropy: above 0 where committed tokens are likelier than exact ones


@dataclass(frozen=True, slots=True)
class Findings:
    """All of it, for one decoder."""

    growth: Growth
    rises: tuple[Rise, ...]
    distances: tuple[Distance, ...]
    columns: Columns
    fidelity: Fidelity


def find(seen: Seen) -> Findings:
    """Sum up the images of one decoder; there must be one at least."""
    s = _total(seen.values())
    drawn = s["committed"] - s["stood"]
    return Findings(
        growth=Growth(
            tokens=round(s["committed"]),
            over_life=_share(s["grew_life"], s["committed"]),
            last_look=_share(s["grew_N"][0], s["could_grow_N"][0]),
            in_a_row=_shares(s["grew_N"], s["could_grow_N"]),
            last_look_standing=_share(s["stood_grew"], s["stood"]),
            last_look_drawn=_share(s["drawn_grew"], drawn),
        ),
        rises=tuple(
            Rise(n, round(had), _share(again, had), _share(again_mass, mass))
            for n, (had, again, mass, again_mass) in enumerate(
                zip(
                    s["rises_N"],
                    s["rises_again_N"],
                    s["rises_mass_N"],
                    s["rises_again_mass_N"],
                    strict=True,
                )
            )
        ),
        distances=tuple(
            Distance(
                name,
                _share(sum(apart), sum(s["looked_W"])),
                _share(there, s["committed"]),
                _shares(apart, s["looked_W"]),
            )
            for name, apart, there in zip(
                CANDIDATES, s["apart_KW"], s["apart_committed_K"], strict=True
            )
        ),
        columns=Columns(
            tested=tuple(map(round, s["tested_W"])),
            accepted=_shares(s["accepted_W"], s["tested_W"]),
            overlap=_shares(s["overlap_W"], s["drafts_W"]),
        ),
        fidelity=Fidelity(
            tokens=round(s["tokens"]),
            log_likelihood=_share(s["log_likelihood"], s["tokens"]),
            entropy=_share(s["entropy"], s["tokens"]),
            surplus=_surplus(seen),
        ),
    )


def change(base: Seen, other: Seen) -> Interval | None:
    """Return how far the mean log-likelihood of `other` lies from that of `base`, over the images that both have."""
    if base is other:
        return None
    both = sorted(base.keys() & other.keys())
    images = (
        (
            key[0],
            [part[key][name] for part in (base, other) for name in ("log_likelihood", "tokens")],
        )
        for key in both
    )
    return _interval(images, _moved)


def _moved(was: float, was_tokens: float, now: float, tokens: float) -> float | None:
    """Return the change as a share of the size of the base's; it is negative where tokens are less likely."""
    return _share(now / tokens - was / was_tokens, abs(was / was_tokens))


def _surplus(seen: Seen) -> Interval | None:
    """Return the surplus. It tells a bias of 2 % from chance with far fewer images than `change`: how hard they are cancels out."""
    images = ((key[0], [seen[key]["log_likelihood"], seen[key]["entropy"]]) for key in sorted(seen))
    return _interval(
        images, lambda log_likelihood, entropy: _share(log_likelihood + entropy, entropy)
    )


def _interval(
    images: Iterable[tuple[int, list[float]]], share: Callable[..., float | None]
) -> Interval | None:
    """Return a share of sums over images, each given with the row of its prompt; None where it is not defined."""
    sums: dict[int, list[float]] = {}
    for prompt, image in images:
        sums[prompt] = (
            [a + b for a, b in zip(sums[prompt], image, strict=True)] if prompt in sums else image
        )
    prompts = list(sums.values())
    dice = random.Random(0)  # equal runs give equal intervals
    drawn = [
        share(*map(sum, zip(*dice.choices(prompts, k=len(prompts)), strict=True)))
        for _ in range(RESAMPLES if prompts else 0)
    ]
    shares = [value for value in drawn if value is not None]
    value = share(*map(sum, zip(*prompts, strict=True))) if prompts else None
    return (
        None if value is None else Interval(value, quantile(shares, 0.025), quantile(shares, 0.975))
    )


def _total(images: Iterable[Sums]) -> dict[str, Any]:
    first, *rest = images
    total = dict(first)
    for image in rest:
        total = {name: _plus(value, image[name]) for name, value in total.items()}
    return total


def _plus(a: Any, b: Any) -> Any:
    return [_plus(x, y) for x, y in zip(a, b, strict=True)] if isinstance(a, list) else a + b


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _shares(parts: Iterable[float], wholes: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(_share(part, whole) for part, whole in zip(parts, wholes, strict=True))
