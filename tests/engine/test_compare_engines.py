"""A comparison through the real engine, on a tiny model: every decoder, twice."""

import pytest
import torch

from sjdvp.compare import ComparisonRequest, compare, plan_variants
from sjdvp.engine.loading import open_engines
from sjdvp.errors import DeviceError
from sjdvp.events import ignore
from sjdvp.presets import PRESETS
from sjdvp.profiles import resolve
from sjdvp.report.load import load_runs, require_fair
from sjdvp.report.metrics import same_tokens
from sjdvp.runs.prompts import inline_prompts
from sjdvp.runs.sharding import Selection
from tests.engine.tiny import save_tiny_model

pytestmark = pytest.mark.process

FIXED = {
    "model.width": None,
    "model.height": None,
    "decoder.window": 6,
    "run.seed": 1,
    "run.batch_size": 1,
    "run.device": "cpu",
}


def test_all_decoders_twice(tmp_path):
    model = str(save_tiny_model(tmp_path / "model"))
    names = [name for name in PRESETS if name != "best"]
    variants = plan_variants(
        names, {}, lambda more: resolve("emoji", {**FIXED, "model.path": model, **more}, {})
    )
    prompts = inline_prompts(["red dog", "a blue cat", "dog"])
    once, again = (
        compared(ComparisonRequest(variants, tmp_path / out, prompts, Selection(None, None)))
        for out in ("once", "again")
    )  # fmt: skip
    assert [run.name for run in once] == names
    require_fair(once)
    for run, other in zip(once, again, strict=True):
        assert [row["nfe"] for row in run.rows.values()] == [
            row["nfe"] for row in other.rows.values()
        ]
        assert same_tokens(run, other) == 1
        assert not any(row["warmup"] for row in run.rows.values())
    plain = once[names.index("ar")]
    assert {
        name for name, run in zip(names, once, strict=True) if same_tokens(plain, run) == 1
    } >= {
        "ar",
        "same-noise",
        "same-noise-vp",
    }


def compared(request):
    summary = compare(request, open_engines, ignore)
    assert (summary.failed, summary.exit_code) == (0, 0)
    return load_runs([request.out / variant.name for variant in request.variants])


def test_decoders_that_do_not_fit_beside_each_other(tmp_path):
    """Memory runs out when the engines are made, or later: no traceback, and what to do."""
    config = resolve("emoji", {**FIXED, "model.path": str(save_tiny_model(tmp_path))}, {}).config

    def make(model, config, batch_size):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    for build in (make, lambda *_: None):
        with (
            pytest.raises(DeviceError, match="caches of 2 decoders at a time do not fit") as told,
            open_engines([config] * 2, build),
        ):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        assert "--batch-size" in told.value.hint
