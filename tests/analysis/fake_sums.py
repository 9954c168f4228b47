"""Sums of images that nobody observed."""

import json
from pathlib import Path

from sjdvp.analysis.metrics import PREDICTIONS, sums_row

SUMS = {
    "committed": 50.0,
    "grew_in_window": 30.0,
    "could_grow_N": [50.0, 40.0, 30.0, 0.0],
    "grew_N": [28.0, 10.0, 3.0, 0.0],
    "accepted": 40.0,
    "accepted_grew": 19.0,
    "sampled_grew": 9.0,
    "rises_N": [500.0, 200.0, 60.0, 10.0, 0.0],
    "rises_again_N": [220.0, 70.0, 15.0, 2.0, 0.0],
    "rises_mass_N": [150.0, 60.0, 20.0, 4.0, 0.0],
    "rises_again_mass_N": [60.0, 20.0, 5.0, 1.0, 0.0],
    "seen_W": [50.0, 50.0, 0.0],
    "apart_KW": [[10.0 + k, 15.0 + k, 0.0] for k in range(len(PREDICTIONS))],
    "apart_committed_K": [8.0 + k for k in range(len(PREDICTIONS))],
    "tested_W": [30.0, 20.0, 0.0],
    "accepted_W": [24.0, 10.0, 0.0],
    "drafts_W": [50.0, 50.0, 0.0],
    "overlap_W": [40.0, 30.0, 0.0],
    "tokens": 63.0,
    "log_likelihood": -126.0,
    "entropy": 125.0,
}


def write_sums(path: Path, n_prompts: int = 8) -> None:
    """Write the same sums for one image each of the first prompts."""
    path.write_text("".join(json.dumps(sums_row((i, 0), SUMS)) + "\n" for i in range(n_prompts)))
