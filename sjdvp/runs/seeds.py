"""Seeds: an image's seed is a hash, so that it depends on nothing but the run's seed, the row and the sample."""

import hashlib
import secrets

_BITS = 53  # JSON readers keep whole numbers exact below 2^53


def image_seed(run_seed: int, index: int, sample: int) -> int:
    """Return the seed of image `sample` of prompt row `index`, in [0, 2^53)."""
    digest = hashlib.sha256(f"sjdvp seed 1: {run_seed} {index} {sample}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _BITS)


def new_run_seed() -> int:
    """Draw a seed for a run that was given none, in [0, 2^32): short enough to type again."""
    return secrets.randbits(32)
