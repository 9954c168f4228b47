"""What the engine measures of one image: its part of the log row."""

import hashlib
from typing import Any

from sjdvp.decode.state import Tally
from sjdvp.errors import ImageError


def decoding_stats(
    n_positions: int, nfe: int, tally: list[float], commits: list[int], predicts: bool
) -> dict[str, Any]:
    """Return how the tokens of one image were decoded.

    `accept_hist[k]` counts the forward passes that committed k tokens. `prediction` is null without
    verification prediction; its rates are over tokens that an earlier forward pass had seen.
    """
    drafted, accepted = int(tally[Tally.DRAFTED]), int(tally[Tally.ACCEPTED])
    seen = tally[Tally.LOOKED]
    prediction = {
        "growth_rate": _ratio(tally[Tally.GREW], seen),
        "rise_again_rate": _ratio(tally[Tally.ROSE_AGAIN], tally[Tally.ROSE]),
        "tv_plain": _ratio(tally[Tally.TV_PLAIN], seen),
        "tv_predicted": _ratio(tally[Tally.TV_PREDICTED], seen),
    }
    return {
        "nfe": nfe,
        "image_tokens": n_positions,
        "tokens_per_nfe": _ratio(n_positions, nfe),
        "drafted": drafted,
        "accepted": accepted,
        "accept_rate": _ratio(accepted, drafted),
        "accept_hist": commits,
        "prediction": prediction if predicts else None,
    }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


def token_digest(tokens: list[int]) -> str:
    """Return the SHA-256 of the image tokens as comma-separated decimals."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()


def error_fields(error: ImageError | None) -> dict[str, str] | None:
    """Return the `error` of a log row; null for an image that succeeded."""
    if error is None:
        return None
    return {"type": type(error).__name__, "message": str(error), "hint": error.hint}
