"""The code vectors of a VQ decoder."""

from torch import nn


class Codebook(nn.Module):
    """Holds the embedding under the name that checkpoints give it."""

    def __init__(self, n_codes: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_codes, size)
