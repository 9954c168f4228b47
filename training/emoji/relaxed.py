"""Measure what relaxed verifiers gain and cost on the embedded model: NFE against fidelity.

python -m training.emoji.relaxed --work FOLDER              generate, analyze, score, print a table
python -m training.emoji.relaxed --work FOLDER --limit 24   the same for the first 24 of the 200
prompts

Two images for each prompt. A folder that is complete is only scored.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from training.emoji import evaluate, prompts
from training.emoji.data import fetch, load_images, read_concepts

# Decoders, and settings to vary. `same-noise` (the images of `ar`) and `sjd` are added to each.
SWEEPS = {
    "chosen": ("lantern,lantern-vp,gsd,gsd-vp", ()),  # as the profile has them
    "varied": (
        "lantern,gsd",
        ("relax.scale=1,2,5", "relax.delta=0.5", "relax.distance=0.7", "relax.group=3,5,15"),
    ),
    "lantern-as-published": ("lantern", ("relax.scale=0", "relax.delta=0.1")),
    "gsd-as-published": ("gsd", ("relax.group=15", "relax.delta=0.15", "relax.distance=0.5")),
}
HEADINGS = (
    "decoder",
    "NFE",
    "NFE vs sjd",
    "accepted",
    "log-likelihood",
    "change",
    "surplus",
    "entropy",
    "right concept",
)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.emoji.relaxed", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for downloads and images")
    parser.add_argument(
        "--limit",
        type=int,
        default=prompts.N_PROMPTS,
        help="only the first prompts; an even number",
    )
    parser.add_argument("--window", default="16", help="tokens verified in one forward pass")
    parser.add_argument("--sweeps", default=",".join(SWEEPS), help="which of %(default)s")
    return parser.parse_args(arguments)


def sample(out: Path, sweep: str, options: argparse.Namespace) -> dict[str, Any]:
    """Analyze a sweep, unless it is done; return the analysis."""
    found = out / "analysis.json"
    if not found.exists():
        decoders, grid = SWEEPS[sweep]
        command = [
            sys.executable,
            "-m",
            "sjdvp_cli",
            "analyze",
            "--profile",
            "emoji",
            "--prompts",
            str(prompts.PROMPTS_FILE),
        ]
        command += ["--decoders", f"same-noise,sjd,{decoders}", "-o", str(out)]
        command += [word for line in grid for word in ("--sweep", line)]
        command += [
            "--limit",
            str(options.limit),
            "-n",
            str(evaluate.N_SEEDS),
            "--seed",
            str(evaluate.SEED),
        ]
        command += ["--window", options.window, "--batch-size", "1"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    findings: dict[str, Any] = json.loads(found.read_text("utf-8"))
    return findings


def right_concepts(folder: Path, asks: list[prompts.Ask], concepts: evaluate.Floats) -> float:
    """Return the share of a run's images whose nearest concept is the prompted one."""
    _, rows = evaluate.score(evaluate.load_run(folder, asks), asks, concepts)
    return sum(row["concept"] for row in rows) / len(rows)


def images_of(out: Path, decoder: str) -> Path:
    """Return the run folder of a variant: its name has settings that do not vary, too."""
    return next(folder for folder in (out / decoder, *out.glob(f"{decoder},*")) if folder.is_dir())


def cells(row: dict[str, Any], concept: float) -> list[str]:
    """Return the line of one decoder, under `HEADINGS`."""
    found, gain = row["fidelity"], row["speedup_nfe"]["sjd"]
    return [
        f"`{row['decoder']}`",
        f"{row['nfe']:.1f}",
        f"{gain:.2f}×" if gain else "–",
        f"{row['accept_rate']:.1%}" if row["accept_rate"] is not None else "–",
        f"{found['log_likelihood']:.4f}",
        interval(row["change"]),
        interval(found["surplus"]),
        f"{found['entropy']:.4f}",
        f"{concept:.1%}",
    ]


def interval(found: dict[str, float] | None) -> str:
    """Return a share in percent, with its interval."""
    return f"{found['value']:+.1%} ({found['low']:+.1%} to {found['high']:+.1%})" if found else "–"


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement."""
    options = parse(arguments)
    fetch(options.work / "cache")
    concepts = read_concepts()
    images = load_images(options.work / "cache", concepts)
    asks = prompts.read([concept.name for concept in concepts])[: options.limit]
    lines = [HEADINGS, ("---", *["---:"] * (len(HEADINGS) - 1))]
    for sweep in options.sweeps.split(","):
        out = options.work / f"relaxed-{options.limit}-{options.window}" / sweep
        for row in sample(out, sweep, options)["decoders"]:
            lines.append(
                tuple(cells(row, right_concepts(images_of(out, row["decoder"]), asks, images)))
            )
    unique = dict.fromkeys(lines)
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in unique))
    return 0


if __name__ == "__main__":
    sys.exit(main())
