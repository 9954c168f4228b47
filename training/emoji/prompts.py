"""The 200 fixed prompts that the model card's scores are measured on, and what each asks for.

Odd rows are trained pairs, even rows held-out ones; the file is written once and then only read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sjdvp.models import emoji
from training.emoji.captions import article, held_out_pairs
from training.emoji.data import COLOURS

PROMPTS_FILE = Path(emoji.__file__).with_name("prompts.txt")
N_PROMPTS = 200
_ASKS = re.compile(rf"(?:an? )?(.+) on an? ({'|'.join(COLOURS)}) background")


@dataclass(frozen=True)
class Ask:
    """One prompt, read back."""

    text: str
    concept: int
    colour: int
    held_out: bool


def choose(names: list[str], seed: int = 7) -> list[str]:
    """Choose as many held-out as trained pairs, no concept twice."""
    rng = np.random.default_rng(seed)
    held = dict(held_out_pairs(len(names)))
    concepts = [int(c) for c in rng.permutation(len(names))]
    out = [c for c in concepts if c in held][: N_PROMPTS // 2]
    trained = [c for c in concepts if c not in set(out)][: N_PROMPTS // 2]
    lines = []
    for known, new in zip(trained, out, strict=True):
        allowed = [k for k in range(len(COLOURS)) if held.get(known) != k]
        lines.append(phrase(names[known], COLOURS[allowed[int(rng.integers(len(allowed)))]]))
        lines.append(phrase(names[new], COLOURS[held[new]]))
    return lines


def phrase(name: str, colour: str) -> str:
    """Say it in the one form these prompts have."""
    plural = name.endswith("s") and not name.endswith("ss")
    thing = name if plural else f"{article(name)} {name}"
    return f"{thing} on {article(colour)} {colour} background"


def read(names: list[str], path: Path = PROMPTS_FILE) -> list[Ask]:
    """Read the prompts back into concepts and colours."""
    held = held_out_pairs(len(names))
    asks = []
    for text in path.read_text("utf-8").splitlines():
        found = _ASKS.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{path}: {text!r} is not of the form 'a red apple on a blue background'"
            )
        concept, colour = names.index(found[1]), COLOURS.index(found[2])
        asks.append(Ask(text, concept, colour, (concept, colour) in held))
    return asks
