"""What the engine measures of one image: its part of the log row."""

from typing import Any

import torch
from torch import Tensor

from sjdvp.errors import ImageError
from sjdvp.interfaces import ImageLayout


def decoding_stats(layout: ImageLayout, window: int, accepted_S: Tensor) -> dict[str, Any]:
    """Return how the tokens of one image were decoded, from which were accepted [S].

    Each iteration commits accepted tokens and one more, which ends it; only the last may lack it.
    So the acceptance map gives every count: NFE, draft tokens tested, and `accept_hist[k]`, the
    number of iterations that committed k tokens. Forced tokens do not count as drafted.
    """
    is_forced = layout.forced_at(torch.arange(layout.length)).tolist()
    is_accepted = accepted_S.tolist()
    hist, drafted, size = [0] * (window + 1), 0, 0
    for position in range(1, layout.length):  # position 0 is sampled from the prefill
        size += 1
        drafted += size < window and not is_forced[position]  # the last of W is the bonus token
        if not is_accepted[position] or position == layout.length - 1:
            hist[size] += 1
            size = 0
    accept_map = layout.image_tokens(accepted_S.int()).tolist()
    nfe, accepted = sum(hist), sum(accept_map)
    return {
        "nfe": nfe,
        "image_tokens": layout.length,
        "tokens_per_nfe": _ratio(layout.length, nfe),
        "drafted": drafted,
        "accepted": accepted,
        "accept_rate": _ratio(accepted, drafted),
        "accept_hist": hist,
        "accept_map": "".join(map(str, accept_map)),
    }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


def error_fields(error: ImageError | None) -> dict[str, str] | None:
    """Return the `error` of a log row; null for an image that succeeded."""
    if error is None:
        return None
    return {"type": type(error).__name__, "message": str(error), "hint": error.hint}
