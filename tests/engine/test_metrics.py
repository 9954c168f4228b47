"""Statistics of one image, read from its acceptance map, against a loop over iterations."""

import random

import pytest
import torch

from sjdvp.engine.metrics import decoding_stats
from sjdvp.interfaces import ImageLayout

LAYOUT = ImageLayout(3, 4, 16, row_end=True)


def an_image(window, rng):
    """Decode an image by chance; return its acceptance map and what happened."""
    forced = LAYOUT.forced_at(torch.arange(LAYOUT.length)).tolist()
    accepted, n, seen = [False], 1, {"drafted": 0, "accepted": 0, "accept_hist": [0] * (window + 1)}
    while n < LAYOUT.length:
        n_drafts = min(window - 1, LAYOUT.length - n)
        passed = 0
        while passed < n_drafts and (forced[n + passed] or rng.random() < 0.6):
            seen["drafted"] += not forced[n + passed]
            seen["accepted"] += not forced[n + passed]
            passed += 1
        seen["drafted"] += passed < n_drafts
        n_new = min(passed + 1, LAYOUT.length - n)
        accepted += [w < passed for w in range(n_new)]
        seen["accept_hist"][n_new] += 1
        n += n_new
    seen["nfe"] = sum(seen["accept_hist"])
    return torch.tensor(accepted), seen


@pytest.mark.parametrize("window", [1, 2, 4, 16])
def test_the_acceptance_map_holds_every_count(window):
    for seed in range(50):
        accepted_S, seen = an_image(window, random.Random(seed))
        stats = decoding_stats(LAYOUT, window, accepted_S)
        assert {key: stats[key] for key in seen} == seen
        assert len(stats["accept_map"]) == 12 and stats["image_tokens"] == 14
