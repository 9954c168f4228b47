"""The published sizes of each model, and what its weights take in each format. Imports no torch."""

from dataclasses import dataclass, replace
from fnmatch import fnmatch

from sjdvp.config import Quantization
from sjdvp.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model."""

    n_layers: int
    hidden: int
    feed_forward: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int  # image tokens
    n_ids: int = 0  # text and image tokens, where one table embeds both
    head_size: int = 0  # 0: hidden / n_heads
    pixels_per_token: int = 16
    row_end: bool = False
    max_prompt: int = 320
    side: int = 512  # pixels, where the profile names no image size
    vq: str = ""  # whose VQ decoder it has, where the sizes are known

    @property
    def size_of_head(self) -> int:
        """The size of a query, key and value."""
        return self.head_size or self.hidden // self.n_heads

    def weight_bytes(self, quantize: Quantization | None) -> int:
        """Return the bytes of transformer, token embeddings and head, 16 bits where not quantized.

        Norms, VQ decoder and text encoder come on top.
        """
        q, kv = self.n_heads * self.size_of_head, self.n_kv_heads * self.size_of_head
        weights = self.hidden * (2 * q + 2 * kv + 3 * self.feed_forward)
        outputs = q + 2 * kv + 2 * self.hidden + 2 * self.feed_forward
        in_layer = {
            None: 2 * weights,
            "int8": weights + 2 * outputs,
            "fp8": weights + 2 * outputs,
            "int4": weights // 2 + weights // 32,  # a scale of 2 bytes for 64 weights
            "nf4": weights // 2 + weights // 32,
        }[quantize]
        tables = (self.n_ids or self.vocab_size) + self.vocab_size
        return self.n_layers * in_layer + 2 * self.hidden * tables


_CHAMELEON = ModelShape(32, 4096, 11008, 32, 32, 8192, n_ids=65536, vq="chameleon")

SHAPES = {  # by profile
    "emoji": ModelShape(8, 256, 704, 4, 4, 4096, pixels_per_token=8, max_prompt=32, side=128),
    "lumina-mgpt-7b-*": replace(_CHAMELEON, row_end=True),
    "lumina-mgpt-34b-*": ModelShape(
        48, 8192, 22016, 64, 8, 8192, n_ids=65536, row_end=True, vq="chameleon"
    ),
    "lumina-mgpt-2*": replace(
        _CHAMELEON, vocab_size=16384, n_ids=171385, pixels_per_token=8, row_end=True, vq="movqgan"
    ),
    "anole-7b*": _CHAMELEON,
    "emu3-gen*": ModelShape(
        32, 4096, 14336, 32, 8, 32768, n_ids=184622, vq="emu3", pixels_per_token=8, row_end=True
    ),
    "emu3.5-image*": ModelShape(
        64, 5120, 25600, 64, 8, 131072, n_ids=282926, head_size=128, row_end=True, max_prompt=512
    ),
    "glm-image*": ModelShape(
        40, 4096, 13696, 32, 2, 16384, n_ids=168064, pixels_per_token=32, max_prompt=512, side=1024
    ),
    "janus-1.3b": ModelShape(24, 2048, 5632, 16, 16, 16384, n_ids=102400, vq="llamagen"),
    "janus-pro-1b": ModelShape(24, 2048, 5632, 16, 16, 16384, n_ids=102400, vq="llamagen"),
    "janus-pro-7b*": ModelShape(30, 4096, 11008, 32, 32, 16384, n_ids=102400, vq="llamagen"),
    "liquid-7b*": ModelShape(
        28, 3072, 24576, 16, 16, 8192, n_ids=264192, head_size=256, vq="chameleon"
    ),
    "llamagen-c2i-b-*": ModelShape(12, 768, 2048, 12, 12, 16384, max_prompt=1, vq="llamagen"),
    "llamagen-c2i-l-*": ModelShape(24, 1024, 2816, 16, 16, 16384, max_prompt=1, vq="llamagen"),
    "llamagen-c2i-xl-*": ModelShape(36, 1280, 3584, 20, 20, 16384, max_prompt=1, vq="llamagen"),
    "llamagen-c2i-xxl-*": ModelShape(48, 1536, 4096, 24, 24, 16384, max_prompt=1, vq="llamagen"),
    "llamagen-c2i-3b-*": ModelShape(24, 3200, 8704, 32, 32, 16384, max_prompt=1, vq="llamagen"),
    "llamagen-t2i-*": ModelShape(36, 1280, 3584, 20, 20, 16384, max_prompt=120, vq="llamagen"),
}


def shape_of(profile: str) -> ModelShape:
    """Return the shape of a profile's model. Raises ConfigError when it is unknown."""
    found = next((shape for pattern, shape in SHAPES.items() if fnmatch(profile, pattern)), None)
    if found is None:
        raise ConfigError(
            f"the shape of profile {profile!r} is unknown", f"known: {', '.join(SHAPES)}"
        )
    return found
