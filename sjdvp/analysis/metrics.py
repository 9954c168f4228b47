"""From the sums that are kept per image to the metrics of a decoder. Imports no torch.

Sums are added over images and divided once at the end. They are on disk beside the run folders, so
that an interrupted analysis resumes.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.errors import FolderError
from sjdvp.report.load import Run
from sjdvp.report.metrics import RESAMPLES, quantile
from sjdvp.runs.jsonl import JsonRow, read_rows
from sjdvp.runs.log import ImageKey

# Of one image: numbers and lists of numbers, by the names that `sjdvp.analysis.iterations` gives.
Sums = Mapping[str, Any]
ImageSums = Mapping[ImageKey, Sums]

# The distributions that the next draft token could be sampled from.
BETAS = (0.5, 1.0)
MOMENTA = (0.25, -0.25, -0.5)
PREDICTIONS = (
    "plain",  # likelihood only: the last target distribution, as in SJD
    *(f"published {beta:g}" for beta in BETAS),  # log p' = log p + beta * M * S
    *(f"momentum {value:g}" for value in MOMENTA),
    "growth only",  # prediction only: log p' = M * S, without p
)


@dataclass(frozen=True, slots=True)
class ProbabilityGrowth:
    """Share of committed tokens whose probability had grown before; None where there is no token.

    Only tokens whose position was in the window for more than one iteration count.
    """

    tokens: int
    over_window: float | None  # from the first iteration in the window to the last
    last_iteration: float | None
    in_a_row: tuple[float | None, ...]  # in each of the last 1, 2, ... iterations
    last_iteration_accepted: float | None  # of tokens committed as an accepted draft token
    last_iteration_sampled: float | None  # of resampled and bonus tokens


@dataclass(frozen=True, slots=True)
class Rise:
    """Of the top tokens that had risen `rises` times in a row, the share that rose once more."""

    rises: int
    tokens: int
    again: float | None
    again_by_mass: float | None  # each token weighted by its probability


@dataclass(frozen=True, slots=True)
class Distance:
    """Mean total variation between a predicted distribution and the next distribution."""

    distribution: str
    everywhere: float | None
    at_commit: float | None  # only where the position was committed in that next iteration
    by_position: tuple[float | None, ...]  # in the window, at the next iteration


@dataclass(frozen=True, slots=True)
class WindowAcceptance:
    """Acceptance of draft tokens by position in the window."""

    tested: tuple[int, ...]
    accepted: tuple[float | None, ...]  # share of the tested: all drafts before were accepted
    overlap: tuple[float | None, ...]  # 1 - TV(q, p), of all draft tokens, tested or not


@dataclass(frozen=True, slots=True)
class Interval:
    """A share, with a 95 % bootstrap interval over prompts."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Nats per token under the model's distribution, without top-k and top-p.

    With exact sampling the two sum to 0 in expectation.
    """

    tokens: int
    log_likelihood: float | None
    entropy: float | None
    # Their sum as a share of the entropy: above 0 where committed tokens are too likely.
    surplus: Interval | None


@dataclass(frozen=True, slots=True)
class AnalysisMetrics:
    """All metrics of one decoder."""

    growth: ProbabilityGrowth
    rises: tuple[Rise, ...]
    distances: tuple[Distance, ...]
    window: WindowAcceptance
    fidelity: Fidelity


def metrics_of(images: ImageSums) -> AnalysisMetrics:
    """Return the metrics of one decoder; there must be at least one image."""
    s = _total(images.values())
    return AnalysisMetrics(
        growth=_growth(s),
        rises=_rises(s),
        distances=_distances(s),
        window=WindowAcceptance(
            tested=tuple(map(round, s["tested_W"])),
            accepted=_shares(s["accepted_W"], s["tested_W"]),
            overlap=_shares(s["overlap_W"], s["drafts_W"]),
        ),
        fidelity=Fidelity(
            tokens=round(s["tokens"]),
            log_likelihood=_share(s["log_likelihood"], s["tokens"]),
            entropy=_share(s["entropy"], s["tokens"]),
            surplus=_surplus(images),
        ),
    )


def _growth(s: Sums) -> ProbabilityGrowth:
    return ProbabilityGrowth(
        tokens=round(s["committed"]),
        over_window=_share(s["grew_in_window"], s["committed"]),
        last_iteration=_share(s["grew_N"][0], s["could_grow_N"][0]),
        in_a_row=_shares(s["grew_N"], s["could_grow_N"]),
        last_iteration_accepted=_share(s["accepted_grew"], s["accepted"]),
        last_iteration_sampled=_share(s["sampled_grew"], s["committed"] - s["accepted"]),
    )


def _rises(s: Sums) -> tuple[Rise, ...]:
    names = ("rises_N", "rises_again_N", "rises_mass_N", "rises_again_mass_N")
    columns = zip(*(s[name] for name in names), strict=True)
    return tuple(
        Rise(n, round(had), _share(again, had), _share(again_mass, mass))
        for n, (had, again, mass, again_mass) in enumerate(columns)
    )


def _distances(s: Sums) -> tuple[Distance, ...]:
    columns = zip(PREDICTIONS, s["apart_KW"], s["apart_committed_K"], strict=True)
    return tuple(
        Distance(
            name,
            _share(sum(apart), sum(s["seen_W"])),
            _share(committed, s["committed"]),
            _shares(apart, s["seen_W"]),
        )
        for name, apart, committed in columns
    )


def change(base: ImageSums, other: ImageSums) -> Interval | None:
    """Return the relative change of the mean log-likelihood from `base` to `other`.

    Only images that both have count. Negative where the tokens of `other` are less likely.
    """
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
    return _interval(images, _relative_change)


def _relative_change(was: float, was_tokens: float, now: float, tokens: float) -> float | None:
    return _share(now / tokens - was / was_tokens, abs(was / was_tokens))


def _surplus(images: ImageSums) -> Interval | None:
    """Return the surplus of likelihood.

    It shows a bias of 2 % with far fewer images than `change`, because the difficulty of an image
    cancels out.
    """
    pairs = ((key[0], [sums["log_likelihood"], sums["entropy"]]) for key, sums in images.items())
    return _interval(
        sorted(pairs), lambda log_likelihood, entropy: _share(log_likelihood + entropy, entropy)
    )


def _interval(
    images: Iterable[tuple[int, list[float]]], share: Callable[..., float | None]
) -> Interval | None:
    """Return a share of sums over images, each given with its prompt row; None where undefined."""
    sums: dict[int, list[float]] = {}
    for prompt, image in images:
        before = sums.get(prompt)
        sums[prompt] = [a + b for a, b in zip(before, image, strict=True)] if before else image
    prompts = list(sums.values())
    value = share(*map(sum, zip(*prompts, strict=True))) if prompts else None
    if value is None:
        return None
    random_state = random.Random(0)  # equal runs give equal intervals
    resampled = [
        share(*map(sum, zip(*random_state.choices(prompts, k=len(prompts)), strict=True)))
        for _ in range(RESAMPLES)
    ]
    shares = [found for found in resampled if found is not None]
    return Interval(value, quantile(shares, 0.025), quantile(shares, 0.975))


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


def sums_path(run: Path) -> Path:
    """Return the file with the sums of a run folder, which is beside the folder."""
    return run.with_name(f"{run.name}.sums.jsonl")


def sums_row(key: ImageKey, sums: Sums) -> JsonRow:
    """Return the row of one image in the file of sums."""
    return {"index": key[0], "sample": key[1], "sums": sums}


def read_sums(runs: Sequence[Run]) -> list[ImageSums]:
    """Return the sums of each run's finished images; FolderError where an image has none."""
    return [_read_sums(run) for run in runs]


def _read_sums(run: Run) -> ImageSums:
    path = sums_path(run.root)
    rows = read_rows(path) if path.exists() else []
    known = {(row["index"], row["sample"]): row["sums"] for row in rows}
    missing = run.ok.keys() - known.keys()
    if missing or not run.ok:
        raise FolderError(
            f"{run.root}: {len(missing) or 'all'} images were generated without being observed",
            "give a new folder as --out",
        )
    return {key: known[key] for key in run.ok}
