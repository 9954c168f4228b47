"""The plan of a run (`generate --dry-run`): what would be done."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from sjdvp.config import lossless_label
from sjdvp.presets import resolved_name
from sjdvp.text import counted
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.generate import Request


def show_plan(request: "Request", *, as_json: bool) -> int:
    """Check a request as `generate` would, and print the plan; loads no model, writes nothing."""
    from sjdvp.generate import preview

    config, seen = request.config, preview(request)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    **asdict(seen),
                    "out": str(request.out),
                    "settings": config.pixel_settings(),
                }
            )
        )
        return 0
    sampling, decoder, copies = config.sampling, config.decoder, config.run.num_images_per_prompt
    plan: dict[str, Any] = {
        "images": "unknown: prompts come from stdin"
        if seen.requested is None
        else f"{seen.requested}, {seen.done} of them finished",
        "images per prompt": copies,
        "prompts": f"{seen.format}, {counted(seen.skipped_lines, 'blank line')} skipped, "
        f"{counted(seen.duplicates, 'duplicate')}",
        "empty rows": f"{seen.empty_rows} skipped" if seen.empty_rows else None,
        "left out": "; ".join(seen.notes) or None,
        "shard": request.shard,
        "files": ", ".join([str(request.out / file) for file in seen.files] + ["…"]),
        "profile": f"{config.profile} ({config.model.backbone})",
        "size": f"{config.model.width}x{config.model.height}"
        if config.model.width
        else "default of the model",
        "sampling": f"CFG scale {sampling.cfg_scale}, temperature {sampling.temperature}, "
        f"top-k {sampling.top_k}, top-p {sampling.top_p}, min-p {sampling.min_p}",
        "negative prompt": sampling.negative_prompt,
        "decoder": f"{resolved_name(decoder.preset)}, window {decoder.window}, "
        f"{lossless_label(decoder.lossless, config.model.quantize)}",
        "seed": "random" if seen.seed is None else seen.seed,
        "batch size": config.run.batch_size,
        "device": config.run.device,
        "fingerprint": config.fingerprint(),
    }
    rows = [[key, str(value)] for key, value in plan.items() if value is not None]
    show_table(["what", "value"], rows)
    return 0
