"""`sjdvp doctor`: whether this machine can run a profile."""

import importlib.metadata
import json
import os
import platform
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sjdvp import __version__
from sjdvp.config import RunConfig
from sjdvp.errors import SjdvpError
from sjdvp_cli.generate import LARGEST_AUTO_WINDOW
from sjdvp_cli.options import takes_options
from sjdvp_cli.settings import DecoderSettings
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.engine.memory import MemoryPlan

PACKAGES = (
    "torch",
    "transformers",
    "safetensors",
    "tokenizers",
    "huggingface_hub",
    "numpy",
    "pillow",
)


@takes_options
def command(
    settings: DecoderSettings,
    card: Annotated[
        Literal["24GB", "48GB", "80GB", "141GB"] | None,
        typer.Option(
            "--card",
            help="Show what to expect on a GPU with that memory. Needs no GPU and no weights.",
            show_default="this machine",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Show devices, versions, weights and memory, and what is missing for a profile."""
    config = settings.resolve().config
    if card:
        return _show(*_expected(config, card), as_json=as_json)
    problem, loading = _loading(config)
    facts = {
        "sjdvp": __version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        **_devices(),
        "profile": config.profile,
        "licence": config.model.licence or "not given",
        **loading,
        "ready": problem or "yes",
    }
    return _show(problem, facts, as_json=as_json)


def _show(problem: str, facts: dict[str, str], *, as_json: bool) -> int:
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        show_table(["item", "found"], list(facts.items()))
    return 2 if problem else 0


def _expected(config: RunConfig, card: str) -> tuple[str, dict[str, str]]:
    """Return why a profile does not fit on a GPU of that memory, or "", and what to expect."""
    from sjdvp.engine.estimate import CARDS, estimate_on

    if config.decoder.window == "auto":
        config = config.with_window(LARGEST_AUTO_WINDOW)
    found = estimate_on(config, CARDS[card])
    plan = found.plan
    problem = "" if found.fits else f"does not fit into {_bytes(plan.free)}"
    shortest, longest = (f"{1e3 * seconds:.1f}" for seconds in found.step_s)
    facts = {
        "profile": config.profile,
        "card": f"{found.card}, {card}, by its data sheet",
        "memory": f"{_bytes(plan.weights)} for the weights",
        "memory per image": f"{_bytes(plan.cache)} KV cache, {_bytes(plan.distributions)} "
        f"probabilities (window {found.window})",
        "memory for pixels": _bytes(plan.pixels) if plan.pixels else "not known",
        "largest batch": f"{plan.largest_batch}; --batch-size auto takes {found.batch_size}",
    }
    expected = {
        "window by arithmetic": f"{found.window_by_arithmetic} at this batch size",
        "step reads and writes": _bytes(int(found.step_bytes)),
        "operations in a step": str(found.n_operations),
        "weights are read in": f"{1e3 * found.weights_read_s:.1f} ms",
        "expected step": f"{shortest} to {longest} ms (counted, not measured)",
        "expected prefill": f"{1e3 * found.prefill_s:.1f} ms",
    }
    return problem, {**facts, **(expected if found.fits else {}), "ready": problem or "yes"}


def _loading(config: RunConfig) -> tuple[str, dict[str, str]]:
    """Return what would stop the loading, or "", and what would be loaded and its memory."""
    from sjdvp.engine.loading import plan_formats, plan_loading

    if config.decoder.window == "auto":
        config = config.with_window(LARGEST_AUTO_WINDOW)
    try:
        model, need = plan_loading(config)
        formats = plan_formats(config)
    except SjdvpError as error:
        return f"{error} ({error.hint})", {}
    others = {
        field: str(getattr(model, field))
        for field in ("tokenizer", "vq_decoder", "text_encoder")
        if getattr(model, field)
    }
    facts = {
        "weights": (model.path or "in the package")
        + (f", revision {model.revision}" if model.revision else ""),
        **others,
        "memory": f"{_bytes(need.weights)} for the weights",
        "memory per image": f"{_bytes(need.cache)} KV cache, {_bytes(need.distributions)} "
        f"probabilities (window {config.decoder.window})",
        "largest batch": str(need.largest_batch),
        "weights by model.quantize": "; ".join(_format(*item) for item in formats.items()),
    }
    return "" if need.largest_batch else f"does not fit: only {_bytes(need.free)} are free", facts


def _format(kind: str, plan: "MemoryPlan | None") -> str:
    """Say what the weights take in a format, and whether one image fits beside them."""
    if plan is None:
        return f"{kind} impossible"
    return f"{kind} {_bytes(plan.weights)}{'' if plan.largest_batch else ' does not fit'}"


def _devices() -> dict[str, str]:
    """Return one line per device."""
    import torch

    from sjdvp.engine.devices import GPU, count_gpus, device_name

    size = os.sysconf("SC_PAGE_SIZE")
    free, total = size * os.sysconf("SC_AVPHYS_PAGES"), size * os.sysconf("SC_PHYS_PAGES")
    facts = {"cpu": f"{os.cpu_count()} cores, {_bytes(free)} of {_bytes(total)} free"}
    for gpu in (torch.device(GPU, index) for index in range(count_gpus())):
        free, total = torch.accelerator.get_memory_info(gpu)
        facts[str(gpu)] = f"{device_name(gpu)}, {_bytes(free)} of {_bytes(total)} free"
    return facts


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
