"""The decoders with a name on the command line: each is a choice of drafter, prediction, verifier and fresh rule. Imports no torch.

A preset is only data, merged below whatever a profile or flag says; a profile may override any field.
"""

import difflib
from typing import Any

from sjdvp.errors import ConfigError

_SJD = {"drafter": "independent", "verifier": "rejection", "init": "uniform"}
_COUPLED = {"drafter": "coupled", "verifier": "rejection", "init": "above"}
_SAME_NOISE = {"drafter": "gumbel", "verifier": "same-noise", "init": "above"}
_PLAIN = {"prediction": {"kind": "none"}}
_PREDICT = {"prediction": {"kind": "adaptive"}}

PRESETS: dict[str, dict[str, Any]] = {
    "ar": {**_SAME_NOISE, **_PLAIN, "init": "uniform", "window": 1},
    "jacobi": {**_SJD, **_PLAIN},  # greedy: sampling.temperature is set to 0 with it
    "sjd": {**_SJD, **_PLAIN},
    "sjdvp": {**_SJD, **_PREDICT},
    "coupled": {**_COUPLED, **_PLAIN},
    "coupled-vp": {**_COUPLED, **_PREDICT},
    "same-noise": {**_SAME_NOISE, **_PLAIN},
    "same-noise-vp": {**_SAME_NOISE, **_PREDICT},
}
_LANTERN = {**_SJD, "verifier": "lantern", "relax": {"neighbours": 1000, "delta": 0.1}}
_GSD = {**_SJD, "verifier": "gsd", "relax": {"group": 15, "delta": 0.15, "distance": 0.5}}
PRESETS |= {
    "lantern": {**_LANTERN, **_PLAIN},
    "lantern-vp": {**_LANTERN, **_PREDICT},
    "gsd": {**_GSD, **_PLAIN},
    "gsd-vp": {**_GSD, **_PREDICT},
}
PRESETS["best"] = PRESETS["coupled-vp"]

GREEDY = frozenset({"jacobi"})


def preset(name: str) -> dict[str, Any]:
    """Return the decoder fields of a named preset; an unknown name raises `ConfigError` with the nearest known one."""
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(
            f"unknown decoder {name!r}", f"{hint}known decoders: {', '.join(PRESETS)}"
        )
    return PRESETS[name]


def resolved_name(name: str) -> str:
    """Return a preset's name, and for `best` also the preset that it stands for."""
    same = next((known for known in PRESETS if PRESETS[known] == PRESETS[name]), name)
    return name if same == name else f"{name} ({same})"
