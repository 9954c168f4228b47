"""Run folders as a real run leaves them, without a model: `python -m tests.report.synthetic DIR
ROWS` makes one to look at.
"""

import hashlib
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sjdvp.jobs import ImageResult, Job
from sjdvp.profiles import resolve
from sjdvp.report.load import load_runs
from sjdvp.report.table import make_results
from sjdvp.report.write import write_report
from sjdvp.runs.folder import RunFolder
from sjdvp.runs.log import RowMaker
from sjdvp.runs.prompts import Prompt, PromptSet
from sjdvp.runs.run_json import Wanted
from sjdvp.runs.sharding import Shard, image_file, image_seed, log_path
from sjdvp.runs.writer import encode_png

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = {  # prompts that a page must show as text
    0: '<script>alert("1")</script> | **a** \u202e',
    1: "</style><img src=x onerror=alert(1)>",
    2: "日本 ![x](http://e.x/i.png)",
}
COST = {
    "ar": 1.0,
    "jacobi": 0.2,
    "sjd": 0.25,
    "sjdvp": 0.2,
    "coupled": 0.125,
    "same-noise": 0.15,
}  # forward passes per token
TOKENS = 256
WHEN = "2026-11-30T12:00:00.000Z"
_IMAGES = 24  # different ones


def prompt_set(rows: int, texts: Mapping[int, str] | None = None) -> PromptSet:
    """Prompts with the columns of PartiPrompts; `texts` replaces some."""
    words = ["Animals", "Food & Beverage", "Abstract", "Vehicles"]
    prompts = tuple(
        Prompt(
            i,
            (texts or {}).get(i, f"an image of thing number {i}"),
            None,
            {"Category": words[i % 4], "Challenge": f"C{i % 2}"},
        )
        for i in range(rows)
    )
    return PromptSet(prompts, "tsv", "parti.tsv", "0" * 64)


def make_run(
    root: Path,
    decoder: str = "sjd",
    rows: int = 8,
    *,
    size: int = 32,
    seed: int = 1,
    failed: Sequence[int] = (),
    texts: Mapping[int, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    stats: Mapping[str, Any] | None = None,
) -> Path:
    """Write a finished run folder; equal arguments give equal figures."""
    config = resolve("emoji", {"decoder.preset": decoder, **(settings or {})}, {}).config
    config = replace(config, run=replace(config.run, seed=seed))
    prompts = prompt_set(rows, texts)
    with RunFolder.open(root, config, prompts, wanted=Wanted(), argv=["sjdvp", "generate"]):
        pass
    maker = RowMaker(config, Shard())
    images = [_image(size, i) for i in range(min(rows, _IMAGES))]
    lines = []
    for prompt in prompts.prompts:
        job = Job(prompt.index, 0, image_seed(seed, prompt.index, 0), prompt.text)
        bad = prompt.index in failed
        pixels = None if bad else np.zeros((size, size, 3), np.uint8)
        error = (
            {
                "type": "ImageError",
                "message": "the model gave logits that are not finite",
                "hint": "try --dtype fp32",
            }
            if bad
            else None
        )
        row = maker.begin(
            prompt, ImageResult(job, pixels, _stats(decoder, job) | dict(stats or {}), error), 1
        )
        row |= {"started_at": WHEN, "host": "host", "pid": 1}
        if not bad:
            data = images[prompt.index % len(images)]
            row |= {
                "file": image_file(prompt.index, 0, 1),
                "bytes": len(data),
                "image_sha256": hashlib.sha256(data).hexdigest(),
            }
            (root / row["file"]).write_bytes(data)
        lines.append(json.dumps(row))
    log_path(root, Shard()).write_text("\n".join(lines) + "\n", encoding="ascii")
    return root


def written_report(folders: Sequence[Path], file: Path) -> list[Path]:
    """Write the report of finished folders, as the command does."""
    runs = load_runs(folders)
    return write_report(runs, make_results(runs), file)


def _stats(decoder: str, job: Job) -> dict[str, Any]:
    dice = random.Random(f"{job.seed} {decoder}")
    nfe = (
        TOKENS - 1
        if decoder == "ar"
        else round(TOKENS * COST.get(decoder, 0.3) * dice.uniform(0.7, 1.3))
    )
    accepted = TOKENS - nfe
    distribution = "ar" if decoder in ("ar", "same-noise") else decoder
    return {
        "nfe": nfe,
        "image_tokens": TOKENS,
        "tokens_per_nfe": TOKENS / nfe,
        "drafted": 0 if decoder == "ar" else accepted + nfe // 2,
        "accepted": accepted if decoder != "ar" else 0,
        "accept_rate": accepted / (accepted + nfe // 2) if decoder != "ar" else None,
        "accept_hist": [0, nfe] if decoder == "ar" else [0, nfe // 2, nfe // 4, nfe // 4, 1],
        "accept_map": "".join(
            "1" if dice.random() < accepted / TOKENS else "0" for _ in range(TOKENS)
        ),
        "token_sha256": hashlib.sha256(f"{job.seed} {distribution}".encode()).hexdigest(),
        "latency_s": round(nfe * 0.01 + 0.02, 6),
        "decode_s": round(nfe * 0.01, 6),
        "prefill_s": 0.01,
        "pixels_s": 0.01,
        "batch_size": 1,
        "dtype": "float32",
        "device": "cpu",
        "peak_mem_bytes": 2**29,
        "model": "emoji",
    }


def _image(size: int, seed: int) -> bytes:
    """A PNG as hard to compress as a photo: soft shapes with a little grain."""
    dice = np.random.default_rng(seed)
    soft = Image.fromarray(dice.integers(0, 256, (6, 6, 3), dtype=np.uint8), "RGB").resize(
        (size, size), Image.Resampling.BICUBIC
    )
    grain = dice.normal(0, 8, (size, size, 3))
    return encode_png(np.clip(np.asarray(soft) + grain, 0, 255).astype(np.uint8), {})


if __name__ == "__main__":
    make_run(Path(sys.argv[1]), "sjd", int(sys.argv[2]), size=256, failed=(5,))
