"""The weights of a run folder: found once, by the process that owns the run, and of one hub revision for the life of the folder."""

import json
from dataclasses import replace
from pathlib import Path

from sjdvp.config import RunConfig
from sjdvp.runs.atomic import write_atomic
from sjdvp.runs.folder import require_run
from sjdvp.runs.layout import RUN
from sjdvp.runs.locks import folder_lock


def pinned(config: RunConfig, root: Path) -> RunConfig:
    """Return the settings with paths for hub ids, at the revision of the folder: that of its first run, here or elsewhere.

    Raises WeightsError when the weights are not there.
    """
    from sjdvp.weights import (
        pin,  # the hub's library takes a while, and is not needed where everything is drawn
    )

    model = pin(
        replace(
            config.model, revision=require_run(root).plain.get("revision") or config.model.revision
        )
    )
    first = keep_revision(root, model.revision)
    return replace(
        config,
        model=model if first == model.revision else pin(replace(config.model, revision=first)),
    )


def keep_revision(root: Path, revision: str | None) -> str | None:
    """Write the revision found into run.json, unless another process was first; return what stands there."""
    with folder_lock(root):
        plain = dict(require_run(root).plain)
        if plain.get("revision") is None and revision is not None:
            write_atomic(
                root / RUN,
                json.dumps({**plain, "revision": revision}, indent=1, allow_nan=False).encode(
                    "ascii"
                )
                + b"\n",
            )
        return plain.get("revision") or revision
