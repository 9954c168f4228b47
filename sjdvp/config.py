"""Settings of a run as frozen dataclasses: read strictly, resolved once, saved with the result. Imports no torch.

A field belongs to `model`, `sampling` or `decoder` when it shapes pixels (it enters the fingerprint), to `run` when it does not.
"""

import dataclasses
import difflib
import hashlib
import json
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from sjdvp.errors import ConfigError

Drafter = Literal["independent", "coupled", "gumbel"]
PredictionKind = Literal["none", "published", "momentum", "adaptive"]
VerifierKind = Literal["rejection", "same-noise", "lantern", "gsd"]
Initialization = Literal["uniform", "above", "left", "repeat"]
StepMode = Literal["auto", "eager", "compile", "graph"]

_CLOSE = 0.75  # of difflib: keys share a section or a prefix, so that less than this suggests what has nothing to do with it


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which weights, and the image they make."""

    backbone: str = "emoji"
    path: str | None = (
        None  # local folder or file, or a hub id; None: what the model ships or names itself
    )
    tokenizer: str | None = None  # where the text tokenizer lives when the weights' folder has none
    pixels: str | None = None  # where the pixel decoder lives when the weights' folder has none
    text_encoder: str | None = (
        None  # of models that read their prompts with another model (LlamaGen t2i: flan-t5-xl)
    )
    clean_captions: bool = False  # LlamaGen t2i: read prompts as its captions were in training; needs the extra sjdvp[t5]
    resolution: int | None = (
        None  # side of the square it was trained for, in pixels, where the weights do not tell
    )
    heads: int | None = (
        None  # attention heads, where neither the weights nor the family's rule tell (LlamaGen)
    )
    revision: str | None = None
    width: int | None = None  # pixels; None: the model's default
    height: int | None = None
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    licence: str | None = None  # of the weights; printed once

    def __post_init__(self) -> None:
        for name in ("width", "height", "resolution", "heads"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"model.{name}", value, "1 or more")


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How logits become the distribution p: CFG merge, then temperature, top-k, top-p, softmax (see sjdvp.sampling)."""

    cfg_scale: float = 1.0
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0

    def __post_init__(self) -> None:
        _require(self.cfg_scale >= 0, "sampling.cfg_scale", self.cfg_scale, "0 or more")
        greedy_or_finite = (
            self.temperature == 0 or self.temperature >= 1e-3
        )  # below, logits over temperature overflow
        _require(
            greedy_or_finite,
            "sampling.temperature",
            self.temperature,
            "0 (greedy), or 0.001 or more",
        )
        _require(self.top_k >= 0, "sampling.top_k", self.top_k, "0 (off) or more")
        _require(0 < self.top_p <= 1, "sampling.top_p", self.top_p, "above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class PredictionConfig:
    """Verification prediction (arXiv 2603.27115): from the last distributions at a position to the distribution its next draft is drawn from."""

    kind: PredictionKind = "none"
    rises: int = 3  # N: how many rises in a row switch the gain on
    history: int = 4  # L: how many past distributions are kept
    decay: float = (
        0.5  # weight of a distribution one step older, in the average of past distributions
    )
    beta: float = 1.0  # strength of the growth gain
    pull: float = (
        -0.25
    )  # kind=momentum: log p' = log p + pull * (log p - log geometric mean of past distributions)
    top_k: int = 64  # tokens of the distribution that may change; 0: all
    clip: float = 3.0  # largest |gain| in nats

    def __post_init__(self) -> None:
        _require(self.rises >= 1, "decoder.prediction.rises", self.rises, "1 or more")
        rises = self.rises if self.kind in ("published", "adaptive") else 1
        _require(
            self.history >= rises,
            "decoder.prediction.history",
            self.history,
            f"at least decoder.prediction.rises ({rises})",
        )
        _require(
            0 < self.decay <= 1, "decoder.prediction.decay", self.decay, "above 0 and at most 1"
        )
        _require(self.beta >= 0, "decoder.prediction.beta", self.beta, "0 or more")
        _require(-1 <= self.pull <= 1, "decoder.prediction.pull", self.pull, "between -1 and 1")
        _require(self.top_k >= 0, "decoder.prediction.top_k", self.top_k, "0 (all) or more")
        _require(self.clip > 0, "decoder.prediction.clip", self.clip, "above 0")


@dataclass(frozen=True, slots=True)
class RelaxConfig:
    """Parameters of the relaxed verifiers `lantern` (arXiv 2410.03355, 2502.06352) and `gsd` (arXiv 2508.07747)."""

    neighbours: int = 1000  # lantern: how many nearest tokens may lend probability
    delta: float = 0.1  # lantern: probability that may be borrowed; gsd: largest difference of probability in a cluster
    scale: float = 0.0  # lantern++: the budget is scale * p(x) instead of delta, when above 0
    group: int = 15  # gsd: tokens in a cluster, an odd number: as many of higher rank as of lower
    distance: float = 0.5  # gsd: largest embedding distance in a cluster

    def __post_init__(self) -> None:
        _require(self.neighbours >= 1, "decoder.relax.neighbours", self.neighbours, "1 or more")
        _require(self.delta >= 0, "decoder.relax.delta", self.delta, "0 or more")
        _require(self.scale >= 0, "decoder.relax.scale", self.scale, "0 (off) or more")
        _require(
            self.group >= 1 and self.group % 2 == 1,
            "decoder.relax.group",
            self.group,
            "an odd number, 1 or more",
        )
        _require(self.distance >= 0, "decoder.relax.distance", self.distance, "0 or more")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """One decoder: a named preset of drafter, prediction, verifier and fresh rule (see sjdvp.presets), and its window."""

    preset: str = "best"
    window: int | Literal["auto"] = (
        16  # the last committed token and window-1 drafts; auto: what is fastest here, see `width`
    )
    drafter: Drafter = "independent"
    verifier: VerifierKind = "rejection"
    init: Initialization = "uniform"
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    relax: RelaxConfig = field(default_factory=RelaxConfig)

    def __post_init__(self) -> None:
        _require(
            self.window == "auto" or 1 <= self.window <= 1024,
            "decoder.window",
            self.window,
            "auto, or between 1 and 1024",
        )

    @property
    def width(self) -> int:
        """The window as a number. It shapes pixels, so `auto` becomes a number when a run folder is begun, and not later."""
        if self.window == "auto":
            raise ConfigError(
                "decoder.window auto is for `sjdvp generate` alone",
                "give a number",
                "decoder.window",
            )
        return self.window

    @property
    def lossless(self) -> bool:
        """Whether the output distribution is exactly the model's."""
        return self.verifier in ("rejection", "same-noise")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What does not shape pixels: where and how fast, not what."""

    batch_size: int | Literal["auto"] = "auto"
    device: str = "auto"
    device_map: Literal["auto"] | None = (
        None  # auto: the layers of a model larger than one GPU are shared out over all
    )
    step: StepMode = "auto"  # how a decoding step is run: as it is, compiled (and captured, on a GPU), captured as a CUDA graph
    seed: int | None = None  # None: drawn once and stored in the run folder
    num_images_per_prompt: int = 1
    on_long_prompt: Literal["truncate", "error"] = "truncate"
    max_failures: int | None = None
    metadata: bool = True  # write the settings into each PNG

    def __post_init__(self) -> None:
        _require(
            self.batch_size == "auto" or self.batch_size >= 1,
            "run.batch_size",
            self.batch_size,
            "auto, 1 or more",
        )
        shared = self.device_map is not None
        _require(
            not shared or self.device == "auto",
            "run.device",
            self.device,
            "auto with run.device_map: it takes every GPU",
        )
        one_device = (
            "auto or eager with run.device_map: other steps are compiled or captured for one device"
        )
        _require(not shared or self.step in ("auto", "eager"), "run.step", self.step, one_device)
        copies = self.num_images_per_prompt
        _require(
            1 <= copies <= 100_000, "run.num_images_per_prompt", copies, "between 1 and 100000"
        )
        _require(
            self.seed is None or 0 <= self.seed < 2**53,
            "run.seed",
            self.seed,
            "between 0 and 2^53 - 1",
        )
        _require(
            self.max_failures is None or self.max_failures >= 0,
            "run.max_failures",
            self.max_failures,
            "0 or more",
        )


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything one run is made of. One YAML profile holds one of these."""

    profile: str = "emoji"
    description: str = ""
    model: ModelConfig = field(default_factory=ModelConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    run: RunSettings = field(default_factory=RunSettings)

    def with_window(self, window: int) -> "RunConfig":
        """Return these settings with another window."""
        return dataclasses.replace(self, decoder=dataclasses.replace(self.decoder, window=window))

    def pixel_settings(self) -> dict[str, Any]:
        """Return the canonical form of all that shapes pixels, apart from the seed and the prompts: plain JSON values."""
        plain = dataclasses.asdict(self)
        del plain["model"]["licence"]
        return {"model": plain["model"], "sampling": plain["sampling"], "decoder": plain["decoder"]}

    def fingerprint(self) -> str:
        """Return a digest of `pixel_settings`: two runs with equal fingerprints, seeds and prompts give the same images."""
        text = json.dumps(self.pixel_settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


T = TypeVar("T")


def from_table(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Build the dataclass `cls` from a plain mapping, strictly.

    Unknown keys, wrong types and values out of range raise `ConfigError` that names the key (as `where.key`), what was found and
    what is known. Numbers are not read from text, booleans are not numbers.
    """
    hints = typing.get_type_hints(cls)
    for key in table:
        if key not in hints:
            raise unknown_key(_join(where, key), [_join(where, known) for known in hints])
    return cls(
        **{key: _convert(hints[key], value, _join(where, key)) for key, value in table.items()}
    )


def setting_types(cls: Any = RunConfig, where: str = "") -> dict[str, Any]:
    """Return the type of every setting below the dataclass `cls`, by dotted key."""
    flat: dict[str, Any] = {}
    for key, hint in typing.get_type_hints(cls).items():
        name = _join(where, key)
        flat.update(setting_types(hint, name) if dataclasses.is_dataclass(hint) else {name: hint})
    return flat


def read_setting(key: str, text: str) -> Any:
    """Return the value of the setting `key` given as text: the text `8` is a number for a number and text for text."""
    types_ = setting_types()
    if key not in types_:
        raise unknown_key(key, types_)
    options = _options(types_[key])
    for option in options:
        try:
            return _from_text(option, text)
        except ValueError:
            continue
    raise ConfigError(f"{key} must be {_describe(options)}, found {text!r}", key=key)


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a setting that does not exist, with the nearest known ones as advice."""
    names = list(known)
    close = [
        k
        for k in names
        if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1] or k.startswith(f"{key}.")
    ]
    close = close or difflib.get_close_matches(key, names, n=1, cutoff=_CLOSE)
    hint = f"did you mean {' or '.join(close[:3])}?" if close else f"known keys: {', '.join(names)}"
    return ConfigError(f"unknown key {key}", hint, key)


def _from_text(option: Any, text: str) -> Any:
    """Read `text` as one of the types a setting may have; ValueError when it is not of that type."""
    if typing.get_origin(option) is Literal:
        words: dict[str, Any] = {str(word): word for word in typing.get_args(option)}
    elif option is bool:
        words = {"true": True, "false": False}
    elif option is type(None):
        words = {"null": None}
    elif option is str:
        return text
    elif re.fullmatch(r"[-+.\deE]+", text):  # no spaces, underscores, inf or nan
        return option(text)
    else:
        raise ValueError(text)
    if text not in words:
        raise ValueError(text)
    return words[text]


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be a section of keys, found {value!r}", key=where)
        return from_table(typing.cast("type[Any]", hint), value, where)
    options = _options(hint)
    for option in options:
        if option is float:
            if (
                type(value) in (int, float) and abs(value) <= sys.float_info.max
            ):  # also refuses inf and nan
                return float(value)
        elif typing.get_origin(option) is Literal:
            if value in typing.get_args(option) and not isinstance(value, bool):
                return value
        elif type(value) is option:
            return value
    raise ConfigError(f"{where} must be {_describe(options)}, found {value!r}", key=where)


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the types a setting may have; text comes last, since any text is text."""
    options = (
        typing.get_args(hint)
        if typing.get_origin(hint) in (types.UnionType, typing.Union)
        else (hint,)
    )
    return tuple(sorted(options, key=lambda option: option is str))


def _describe(options: tuple[Any, ...]) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        type(None): "nothing (null)",
    }
    words = [
        ", ".join(typing.get_args(o)) if typing.get_origin(o) is Literal else names.get(o, str(o))
        for o in options
    ]
    return " or ".join(words)


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"{name} must be {allowed}, found {value!r}", key=name)
