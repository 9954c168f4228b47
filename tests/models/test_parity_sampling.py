"""Temperature, top-k, top-p against LlamaGen's sampler and transformers' warpers."""

import json

import pytest
import torch

from sjdvp.config import SamplingConfig
from sjdvp.sampling import to_probs
from tests.models.harness import PARITY, load_file, worst

SETTINGS = json.loads((PARITY / "sampling" / "settings.json").read_text())
# Here the edge of top-p falls inside a group of equal logits: sort order decides which stay.
TIED = {5: "quantised_many_ties", 6: "tie_at_rank_5_6_7"}


@pytest.mark.parametrize("official", ["llamagen", "transformers"])
@pytest.mark.parametrize("number", range(len(SETTINGS["settings"])))
def test_distributions(official: str, number: int) -> None:
    logits_NV = load_file(PARITY / "sampling" / "inputs.safetensors")["logits"]
    expected_NV = load_file(PARITY / "sampling" / f"expected_{official}.safetensors")[
        f"{official}_probs_{number}"
    ]
    sampling = SamplingConfig(**SETTINGS["settings"][number])
    found_NV = to_probs(
        logits_NV[None], torch.zeros(1, len(logits_NV), dtype=torch.bool), sampling
    )[0]
    tied = [SETTINGS["rows"].index(TIED[number])] if number in TIED else []
    found_NV[tied], expected_NV[tied] = (
        found_NV[tied].sort(-1).values,
        expected_NV[tied].sort(-1).values,
    )
    assert worst(found_NV, expected_NV) < 1e-6
    if official == "llamagen":
        greedy_N = load_file(PARITY / "sampling" / "expected_llamagen.safetensors")[
            f"llamagen_greedy_{number}"
        ]
        is_top_N = found_NV.gather(-1, greedy_N[:, None])[:, 0] == found_NV.amax(
            -1
        )  # several tokens may share the top
        assert is_top_N[[row for row in range(len(is_top_N)) if row not in tied]].all()
