"""Settings of a run as frozen dataclasses: read strictly, resolved once, stored with the images.

Fields of `model`, `sampling` and `decoder` shape pixels and enter the fingerprint; fields of `run`
do not. Imports no torch.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import sys
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from sjdvp.errors import ConfigError
from sjdvp.value_types import describe, from_text, options_of

Drafter = Literal["independent", "coupled", "gumbel"]
PredictionKind = Literal["none", "published", "momentum", "adaptive"]
VerifierKind = Literal["rejection", "same-noise", "lantern", "gsd"]
LOSSLESS: dict[VerifierKind, bool] = {  # whether the output distribution is exactly the model's
    "rejection": True,
    "same-noise": True,
    "lantern": False,
    "gsd": False,
}
# Backbones whose unconditional branch is a text, so that another text may take its place.
NEGATIVE_PROMPT = frozenset({"emoji", "generic", "emu3", "emu3.5"})
# Backbones whose rotary table belongs to one image size: a run has one size.
ONE_SIZE = frozenset({"glm-image"})
# without a VQ decoder: another program turns their tokens into pixels
TOKENS_ONLY = frozenset({"glm-image"})
Initialization = Literal["uniform", "above", "left", "repeat"]
ImageFormat = Literal["png", "jpg", "webp"]
Quantization = Literal["int8", "int4", "nf4", "fp8"]
StepMode = Literal["auto", "eager", "compile", "graph"]

# Names before version 0.1: refused, with the new name in the hint. Sections are renamed first.
RENAMED = {
    "model.pixels": "model.vq_decoder",
    "decoder.prior": "decoder.prediction",
    "decoder.prediction.pull": "decoder.prediction.momentum",
    "decoder.prediction.kind=growth": "decoder.prediction.kind=published",
    "decoder.prediction.kind=history": "decoder.prediction.kind=momentum",
    "decoder.fresh": "decoder.init",
    "decoder.verifier=exact": "decoder.verifier=rejection",
}

_CLOSE = 0.75  # similarity of difflib; many keys share a prefix, so a lower one misleads


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which weights, and the size of the image they make."""

    backbone: str = "emoji"  # the model family
    # A local folder or file, or a hub id. None: the weights in the package, or the family's own.
    path: str | None = None
    tokenizer: str | None = None  # the text tokenizer, where it is not beside the weights
    vq_decoder: str | None = None  # the VQ decoder, where it is not beside the weights
    text_encoder: str | None = None  # LlamaGen t2i: flan-t5-xl
    clean_captions: bool = False  # LlamaGen t2i: clean prompts as in training; needs the extra t5
    resolution: int | None = None  # side of the training square in pixels, if not in the weights
    heads: int | None = None  # attention heads, if neither weights nor family tell (LlamaGen)
    revision: str | None = None  # of the hub repository
    width: int | None = None  # pixels; None: the model's default
    height: int | None = None
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    # Format of the transformer's linear layers. None: `dtype`. Lossless then means: exactly as
    # ordinary sampling from the quantized model.
    quantize: Quantization | None = None
    licence: str | None = None  # of the weights; printed once

    def __post_init__(self) -> None:
        for name in ("width", "height", "resolution", "heads"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"model.{name}", value, "1 or more")


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """From logits to probabilities: CFG, temperature, top-k, top-p, min-p, softmax.

    See `sjdvp.sampling`.
    """

    cfg_scale: float = 1.0
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0  # least probability, as a fraction of the largest one; 0: off
    # LlamaGen: image positions 0 to cfg_interval have CFG, later ones do not; -1: all have it.
    cfg_interval: int = -1
    negative_prompt: str | None = None  # text of the unconditional branch; None: the model's own

    def __post_init__(self) -> None:
        _require(self.cfg_scale >= 0, "sampling.cfg_scale", self.cfg_scale, "0 or more")
        # Below 0.001 the logits divided by the temperature overflow.
        ok, allowed = self.temperature >= 1e-3, "0 (greedy), or 0.001 or more"
        _require(ok or self.temperature == 0, "sampling.temperature", self.temperature, allowed)
        _require(self.top_k >= 0, "sampling.top_k", self.top_k, "0 (off) or more")
        _require(0 < self.top_p <= 1, "sampling.top_p", self.top_p, "above 0 and at most 1")
        _require(0 <= self.min_p <= 1, "sampling.min_p", self.min_p, "between 0 (off) and 1")
        interval, allowed = self.cfg_interval, "-1 (off), or 0 or more"
        _require(interval >= -1, "sampling.cfg_interval", interval, allowed)


@dataclass(frozen=True, slots=True)
class PredictionConfig:
    """Verification prediction (arXiv 2603.27115): draft from a prediction of the next distribution.

    The letters are those of the paper.
    """

    kind: PredictionKind = "none"
    rises: int = 3  # N: rises in a row after which a token's probability is raised further
    history: int = 4  # L: past distributions that are kept
    decay: float = 0.5  # weight of a distribution that is one iteration older, in the average
    beta: float = 1.0  # strength of the growth term
    # kind momentum: log p' = log p + momentum * (log p - log of the geometric mean of the history)
    momentum: float = -0.25
    top_k: int = 64  # tokens whose probability may change; 0: all
    clip: float = 3.0  # largest change of a log-probability, in nats

    def __post_init__(self) -> None:
        where = "decoder.prediction"
        _require(self.rises >= 1, f"{where}.rises", self.rises, "1 or more")
        least = self.rises if self.kind in ("published", "adaptive") else 1
        enough = f"at least {where}.rises ({least})"
        _require(self.history >= least, f"{where}.history", self.history, enough)
        _require(0 < self.decay <= 1, f"{where}.decay", self.decay, "above 0 and at most 1")
        _require(self.beta >= 0, f"{where}.beta", self.beta, "0 or more")
        bounded = -1 <= self.momentum <= 1
        _require(bounded, f"{where}.momentum", self.momentum, "between -1 and 1")
        _require(self.top_k >= 0, f"{where}.top_k", self.top_k, "0 (all) or more")
        _require(self.clip > 0, f"{where}.clip", self.clip, "above 0")


@dataclass(frozen=True, slots=True)
class RelaxConfig:
    """Relaxed verifiers: `lantern` (arXiv 2410.03355, 2502.06352), `gsd` (arXiv 2508.07747)."""

    neighbours: int = 1000  # lantern: nearest tokens whose probability may be borrowed
    # lantern: probability that may be borrowed; gsd: largest difference within a cluster
    delta: float = 0.1
    scale: float = 0.0  # lantern++: above 0 the budget is scale * p(x) instead of delta
    group: int = 15  # gsd: tokens in a cluster; odd, so that as many rank above as below
    distance: float = 0.5  # gsd: largest embedding distance within a cluster

    def __post_init__(self) -> None:
        where = "decoder.relax"
        _require(self.neighbours >= 1, f"{where}.neighbours", self.neighbours, "1 or more")
        _require(self.delta >= 0, f"{where}.delta", self.delta, "0 or more")
        _require(self.scale >= 0, f"{where}.scale", self.scale, "0 (off) or more")
        odd = self.group >= 1 and self.group % 2 == 1
        _require(odd, f"{where}.group", self.group, "an odd number, 1 or more")
        _require(self.distance >= 0, f"{where}.distance", self.distance, "0 or more")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """One decoder: a preset (see `sjdvp.presets`) or the choice of each of its parts."""

    preset: str = "best"
    # The last committed token and window - 1 draft tokens. auto: the fastest here, see `width`.
    window: int | Literal["auto"] = 16
    drafter: Drafter = "independent"
    verifier: VerifierKind = "rejection"
    init: Initialization = "uniform"
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    relax: RelaxConfig = field(default_factory=RelaxConfig)

    def __post_init__(self) -> None:
        ok = self.window == "auto" or 1 <= self.window <= 1024
        _require(ok, "decoder.window", self.window, "auto, or between 1 and 1024")

    @property
    def width(self) -> int:
        """The window as a number; raises ConfigError for `auto`.

        The window shapes pixels: `generate` replaces `auto` by a number when it makes the folder.
        """
        if self.window == "auto":
            raise ConfigError(
                "decoder.window can be auto only in `sjdvp generate`",
                "give a number, for example --window 16",
                "decoder.window",
            )
        return self.window

    @property
    def lossless(self) -> bool:
        """Whether the output distribution is exactly that of ordinary sampling."""
        return LOSSLESS[self.verifier]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What does not shape pixels: where and how fast, not what."""

    batch_size: int | Literal["auto"] = "auto"
    device: str = "auto"
    device_map: Literal["auto"] | None = None  # auto: share the layers over all GPUs
    step: StepMode = "auto"  # how a decode step runs: as it is, compiled, or as a CUDA graph
    seed: int | None = None  # None: chosen once at random and stored in the run folder
    num_images_per_prompt: int = 1
    on_long_prompt: Literal["truncate", "error"] = "truncate"
    max_failures: int | None = None
    save_tokens: bool = False  # keep the image tokens of each image
    metadata: bool = True  # write the settings into each image
    image_format: ImageFormat = "png"
    image_quality: int = 95  # of jpg and webp

    def __post_init__(self) -> None:
        size_ok = self.batch_size == "auto" or self.batch_size >= 1
        _require(size_ok, "run.batch_size", self.batch_size, "auto, or 1 or more")
        if self.device_map is not None:
            all_gpus = "auto with run.device_map: it takes every GPU"
            _require(self.device == "auto", "run.device", self.device, all_gpus)
            one_device = "auto or eager with run.device_map: other steps run on one device"
            _require(self.step in ("auto", "eager"), "run.step", self.step, one_device)
        copies = self.num_images_per_prompt
        copies_ok = 1 <= copies <= 100_000
        _require(copies_ok, "run.num_images_per_prompt", copies, "between 1 and 100000")
        quality_ok = 1 <= self.image_quality <= 100
        _require(quality_ok, "run.image_quality", self.image_quality, "between 1 and 100")
        seed_ok = self.seed is None or 0 <= self.seed < 2**53
        _require(seed_ok, "run.seed", self.seed, "between 0 and 2^53 - 1")
        failures_ok = self.max_failures is None or self.max_failures >= 0
        _require(failures_ok, "run.max_failures", self.max_failures, "0 or more")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything one run is made of. One YAML profile holds one of these."""

    profile: str = "emoji"
    description: str = ""
    model: ModelConfig = field(default_factory=ModelConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        sampling, key = self.sampling, "sampling.negative_prompt"
        if sampling.negative_prompt is None:
            return
        if self.model.backbone not in NEGATIVE_PROMPT:
            can = ", ".join(sorted(NEGATIVE_PROMPT))
            problem = f"{key}: {self.model.backbone} models take no negative prompt"
            raise ConfigError(problem, f"leave it out; backbones that take one: {can}", key)
        if sampling.cfg_scale == 1:
            problem = f"{key} does nothing at sampling.cfg_scale 1"
            raise ConfigError(problem, "give another --cfg-scale, or leave it out", key)

    def with_window(self, window: int) -> "RunConfig":
        """Return these settings with another window."""
        return dataclasses.replace(self, decoder=dataclasses.replace(self.decoder, window=window))

    def pixel_settings(self) -> dict[str, Any]:
        """Return all that shapes pixels, apart from seed and prompts, as plain JSON values."""
        plain = dataclasses.asdict(self)
        del plain["model"]["licence"]
        return {"model": plain["model"], "sampling": plain["sampling"], "decoder": plain["decoder"]}

    def fingerprint(self) -> str:
        """Return a digest of `pixel_settings`.

        Two runs with equal fingerprints, seeds and prompts give the same images.
        """
        text = json.dumps(self.pixel_settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def lossless_label(lossless: bool, quantize: str | None) -> str:
    """Say in words whether a decoder is lossless, and towards which weights."""
    if not lossless:
        return "not lossless"
    return f"lossless to {quantize} weights" if quantize else "lossless"


T = TypeVar("T")


def from_table(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Build the dataclass `cls` from a plain mapping, strictly.

    Unknown keys, wrong types and values out of range raise `ConfigError` that names the key (as
    `where.key`), what was found and what is known. Text is not read as a number, and a boolean is
    no number.
    """
    hints = typing.get_type_hints(cls)
    for key in table:
        if key not in hints:
            raise unknown_key(_join(where, key), [_join(where, known) for known in hints])
    return cls(
        **{key: _convert(hints[key], value, _join(where, key)) for key, value in table.items()}
    )


@functools.cache
def setting_types(cls: Any = RunConfig, where: str = "") -> Mapping[str, Any]:
    """Return the type of every setting below the dataclass `cls`, by dotted key."""
    flat: dict[str, Any] = {}
    for key, hint in typing.get_type_hints(cls).items():
        name = _join(where, key)
        nested = dataclasses.is_dataclass(hint)
        flat.update(setting_types(hint, name) if nested else {name: hint})
    return flat


def read_setting(key: str, text: str) -> Any:
    """Return the value of `text` as the type of the setting `key`."""
    types_ = setting_types()
    if key not in types_:
        raise unknown_key(key, types_)
    options = options_of(types_[key])
    for option in options:
        try:
            return from_text(option, text)
        except ValueError:
            continue
    raise _wrong_value(key, options, text)


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a setting that does not exist, with the nearest known ones as hint."""
    names = list(known)
    if renamed(key) != key:
        return ConfigError(f"unknown key {key}", f"it is now called {renamed(key)}", key)
    last = key.rsplit(".", 1)[-1]
    close = [k for k in names if k.rsplit(".", 1)[-1] == last or k.startswith(f"{key}.")]
    close = close or difflib.get_close_matches(key, names, n=1, cutoff=_CLOSE)
    every = "`sjdvp profiles show` lists all keys"
    hint = f"did you mean {' or '.join(close[:3])}?" if close else every
    return ConfigError(f"unknown key {key}", hint, key)


def renamed(key: str) -> str:
    """Return what a key, or `key=value`, is called now: itself, unless it is in `RENAMED`."""
    for old, new in RENAMED.items():
        if key == old or key.startswith(f"{old}."):
            key = new + key.removeprefix(old)
    return key


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be a section of keys, found {value!r}", key=where)
        return from_table(typing.cast("type[Any]", hint), value, where)
    options = options_of(hint)
    for option in options:
        if option is float:
            # The comparison also refuses inf and nan.
            if type(value) in (int, float) and abs(value) <= sys.float_info.max:
                return float(value)
        elif typing.get_origin(option) is Literal:
            if value in typing.get_args(option) and not isinstance(value, bool):
                return value
        elif type(value) is option:
            return value
    raise _wrong_value(where, options, value)


def _wrong_value(key: str, options: tuple[Any, ...], value: Any) -> ConfigError:
    old = f"{key}={value}"
    hint = f"it is now called {renamed(old).partition('=')[2]}" if renamed(old) != old else ""
    return ConfigError(f"{key} must be {describe(options)}, found {value!r}", hint, key)


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"{name} must be {allowed}, found {value!r}", key=name)
