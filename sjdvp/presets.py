"""The decoders that have a name: each is a drafter, a prediction, a verifier, an initialization.

A preset is only data, merged below whatever a profile or flag says. Imports no torch.
"""

import difflib
from typing import Any

from sjdvp.errors import ConfigError

_SJD = {"drafter": "independent", "verifier": "rejection", "init": "uniform"}
_COUPLED = {"drafter": "coupled", "verifier": "rejection", "init": "above"}
_SAME_NOISE = {"drafter": "gumbel", "verifier": "same-noise", "init": "above"}
_LANTERN = {**_SJD, "verifier": "lantern", "relax": {"neighbours": 1000, "delta": 0.1}}
_GSD = {**_SJD, "verifier": "gsd", "relax": {"group": 15, "delta": 0.15, "distance": 0.5}}

_PLAIN = {"prediction": {"kind": "none"}}
_PUBLISHED = {"prediction": {"kind": "published"}}  # arXiv 2603.27115: N = 3, beta = 1
_ADAPTIVE = {"prediction": {"kind": "adaptive"}}  # the best of five predictions so far

PRESETS: dict[str, dict[str, Any]] = {
    "ar": {**_SAME_NOISE, **_PLAIN, "init": "uniform", "window": 1},
    "jacobi": {**_SJD, **_PLAIN},  # greedy: it sets sampling.temperature to 0
    "sjd": {**_SJD, **_PLAIN},
    "sjdvp": {**_SJD, **_PUBLISHED},
    "sjdvp-adaptive": {**_SJD, **_ADAPTIVE},
    "coupled": {**_COUPLED, **_PLAIN},
    "coupled-vp": {**_COUPLED, **_ADAPTIVE},
    "same-noise": {**_SAME_NOISE, **_PLAIN},
    "same-noise-vp": {**_SAME_NOISE, **_ADAPTIVE},
    "lantern": {**_LANTERN, **_PLAIN},
    "lantern-vp": {**_LANTERN, **_ADAPTIVE},
    "gsd": {**_GSD, **_PLAIN},
    "gsd-vp": {**_GSD, **_ADAPTIVE},
}
PRESETS["best"] = PRESETS["coupled-vp"]  # the best lossless one by measure, see docs/experiments.md

GREEDY = frozenset({"jacobi"})


def preset(name: str) -> dict[str, Any]:
    """Return the decoder fields of a named preset.

    Raises ConfigError for an unknown name, with the nearest known one in the hint.
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        known = ", ".join(PRESETS)
        raise ConfigError(f"unknown decoder {name!r}", f"{hint}known decoders: {known}")
    return PRESETS[name]


def resolved_name(name: str) -> str:
    """Return a preset's name, and for `best` also the preset behind it."""
    same = next((known for known in PRESETS if PRESETS[known] == PRESETS[name]), name)
    return name if same == name else f"{name} ({same})"
