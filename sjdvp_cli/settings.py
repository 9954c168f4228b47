"""The settings of a run as flags: `Settings` and its bases.

A command takes the smallest group that covers what it does.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from sjdvp.errors import ConfigError
from sjdvp.presets import PRESETS
from sjdvp.profiles import Resolved, resolve
from sjdvp_cli.options import option

PROFILE = "from the profile"  # the default of a setting that profiles give

_settings, _model, _sampling, _decoding, _running = map(
    option, ("Settings", "Model", "Sampling", "Decoding", "Running")
)

# flag: its setting. Values stay text here and are read by the type of the setting.
_KEYS = {
    "model": "model.path",
    "dtype": "model.dtype",
    "cfg_scale": "sampling.cfg_scale",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "min_p": "sampling.min_p",
    "negative_prompt": "sampling.negative_prompt",
    "decoder": "decoder.preset",
    "window": "decoder.window",
    "seed": "run.seed",
    "num_images": "run.num_images_per_prompt",
    "batch_size": "run.batch_size",
    "device": "run.device",
    "device_map": "run.device_map",
    "on_long_prompt": "run.on_long_prompt",
    "max_failures": "run.max_failures",
    "save_tokens": "run.save_tokens",
    "metadata": "run.metadata",
    "image_format": "run.image_format",
    "image_quality": "run.image_quality",
}
_CFG = ("--cfg-scale", "--guidance-scale", "--cfg")
_COPIES = ("--num-images-per-prompt", "-n")
_LONG = "Truncate a prompt that is too long for the model, or fail its image."


@dataclass(frozen=True, slots=True)
class Assignments:
    """`--set`: any setting by its key."""

    assignments: Annotated[
        list[str] | None,
        _settings(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting of a profile; may be repeated.",
            show_default="none",
        ),
    ] = None

    def overrides(self) -> dict[str, Any]:
        """Return what the flags give, by dotted key; a setting that is given twice is an error."""
        pairs = [
            (key, getattr(self, flag))
            for flag, key in _KEYS.items()
            if getattr(self, flag, None) is not None
        ]
        size = getattr(self, "size", None)
        if size is not None:
            pairs += zip(("model.width", "model.height"), parse_size(size), strict=True)
        pairs += [parse_assignment(text) for text in self.assignments or []]
        given: dict[str, Any] = {}
        for key, value in pairs:
            if key in given:
                raise ConfigError(f"{key} is given twice", "give it once, by its flag or by --set")
            given[key] = value
        return given


@dataclass(frozen=True, slots=True)
class ModelSettings(Assignments):
    """The model, and the size of its images."""

    profile: Annotated[
        str | None,
        _settings(
            "--profile",
            "-p",
            metavar="NAME|FILE.yaml",
            help="A model and its settings; see `sjdvp profiles`.",
            show_default="emoji",
        ),
    ] = None
    model: Annotated[
        str | None,
        _model(
            "--model",
            metavar="PATH|ID",
            help="Weights: a local folder or file, or a Hugging Face id.",
            show_default=PROFILE,
        ),
    ] = None
    size: Annotated[
        str | None,
        _model("--size", metavar="N|WxH", help="Image size in pixels.", show_default=PROFILE),
    ] = None

    def resolve(self) -> Resolved:
        """Merge with the other layers of settings."""
        return resolve(self.profile, self.overrides())


DEVICE = _running(
    "--device", metavar="auto|cpu|cuda|cuda:K", help="Device of the model.", show_default="auto"
)


@dataclass(frozen=True, slots=True)
class EngineSettings(ModelSettings):
    """What decides how one forward pass is computed."""

    dtype: Annotated[
        str | None,
        _model(
            "--dtype",
            metavar="auto|bf16|fp16|fp32",
            help="Number format; auto is bf16 on GPUs that support it, else fp32.",
            show_default="auto",
        ),
    ] = None
    cfg_scale: Annotated[
        str | None,
        _sampling(
            *_CFG,
            metavar="NUMBER",
            help="Classifier-free guidance scale; 1 turns it off.",
            show_default=PROFILE,
        ),
    ] = None
    temperature: Annotated[
        str | None,
        _sampling(
            "--temperature",
            metavar="NUMBER",
            help="Sampling temperature; 0 is greedy.",
            show_default=PROFILE,
        ),
    ] = None
    top_k: Annotated[
        str | None,
        _sampling(
            "--top-k",
            metavar="N",
            help="Sample from the N most probable tokens; 0 turns it off.",
            show_default=PROFILE,
        ),
    ] = None
    top_p: Annotated[
        str | None,
        _sampling(
            "--top-p",
            metavar="NUMBER",
            help="Sample from the fewest tokens with this total probability; 1 turns it off.",
            show_default=PROFILE,
        ),
    ] = None
    min_p: Annotated[
        str | None,
        _sampling(
            "--min-p",
            metavar="NUMBER",
            help="Sample from tokens at least this fraction as probable as the most probable one; "
            "0 turns it off.",
            show_default=PROFILE,
        ),
    ] = None
    negative_prompt: Annotated[
        str | None,
        _sampling(
            "--negative-prompt",
            metavar="TEXT",
            help="Text that guidance leads away from, for models that take one.",
            show_default="the model's own",
        ),
    ] = None
    device: Annotated[str | None, DEVICE] = None
    device_map: Annotated[
        str | None,
        _running(
            "--device-map",
            metavar="auto",
            help="auto distributes the layers of one model over all GPUs.",
            show_default="off",
        ),
    ] = None


_decoder = _decoding(
    "--decoder",
    metavar="NAME",
    help=f"Decoding method: {', '.join(PRESETS)}.",
    show_default=PROFILE,
)
_WINDOW = "Tokens verified per forward pass"


@dataclass(frozen=True, slots=True)
class DecoderSettings(EngineSettings):
    """Settings of one decoder."""

    decoder: Annotated[str | None, _decoder] = None


def _batch_size(default: str) -> Any:
    metavar, text = "N|auto", "Images decoded at the same time."
    return _running("--batch-size", metavar=metavar, help=text, show_default=default)


@dataclass(frozen=True, slots=True)
class VariantSettings(EngineSettings):
    """Settings that all decoders of a comparison share."""

    window: Annotated[
        str | None,
        _decoding("--window", metavar="N", help=f"{_WINDOW}.", show_default=PROFILE),
    ] = None
    seed: Annotated[
        str | None,
        _running(
            "--seed",
            metavar="N",
            help="Run seed, from which each image's seed is made.",
            show_default="random, kept in the run folder",
        ),
    ] = None
    num_images: Annotated[
        str | None, _running(*_COPIES, metavar="N", help="Images per prompt.", show_default="1")
    ] = None
    batch_size: Annotated[str | None, _batch_size("1")] = None
    on_long_prompt: Annotated[
        str | None,
        _running("--on-long-prompt", metavar="truncate|error", help=_LONG, show_default="truncate"),
    ] = None
    max_failures: Annotated[
        str | None,
        _running(
            "--max-failures",
            metavar="N",
            help="Stop after more than N failed images.",
            show_default="no limit",
        ),
    ] = None
    metadata: Annotated[
        bool | None,
        _running(
            "--metadata/--no-metadata",
            help="Write prompt and settings into each image.",
            show_default="--metadata",
        ),
    ] = None
    image_format: Annotated[
        str | None,
        _running(
            "--image-format",
            metavar="png|jpg|webp",
            help="Format of the image files; png keeps the pixels exactly.",
            show_default="png",
        ),
    ] = None
    image_quality: Annotated[
        str | None,
        _running(
            "--image-quality",
            metavar="1-100",
            help="Quality of jpg and webp.",
            show_default="95",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Settings(VariantSettings):
    """All settings of a run."""

    decoder: Annotated[str | None, _decoder] = None
    window: Annotated[
        str | None,
        _decoding(
            "--window",
            metavar="N|auto",
            help=f"{_WINDOW}; auto measures which number is fastest here.",
            show_default=PROFILE,
        ),
    ] = None
    batch_size: Annotated[str | None, _batch_size("auto")] = None
    save_tokens: Annotated[
        bool | None,
        _running(
            "--save-tokens/--no-save-tokens",
            help="Also save the image tokens; `sjdvp decode` makes images from them.",
            show_default="--no-save-tokens",
        ),
    ] = None


def parse_size(text: str) -> tuple[int, int]:
    """Read `512` or `640x480` as width and height."""
    width, cross, height = text.lower().partition("x")
    parts = [width, height] if cross else [width]
    if not all(part.isascii() and part.isdigit() and 0 < len(part) < 6 for part in parts):
        raise ConfigError(
            f"--size must be N or WxH in pixels, found {text!r}",
            "for example --size 512 or --size 768x512",
        )
    return int(width), int(height if cross else width)


def parse_assignment(text: str) -> tuple[str, str]:
    """Read `key=value` of `--set`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(
            f"--set must be KEY=VALUE, found {text!r}",
            "for example --set decoder.prediction.rises=2",
        )
    return key.strip(), value.strip()
