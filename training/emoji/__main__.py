"""Train the embedded model again and print its scores; a stopped run resumes.

python -m training.emoji --work FOLDER              everything
python -m training.emoji --work FOLDER --score      only generate and score with the shipped model

It downloads with npm and renders with resvg_py: ``pip install resvg_py`` first.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from sjdvp.models import emoji
from training.emoji import evaluate, export, prompts
from training.emoji.batches import TrainingSource
from training.emoji.captions import build_tokenizer, held_out_pairs
from training.emoji.codebook import TokenTable, build_table
from training.emoji.data import fetch, load_images, read_concepts
from training.emoji.pixels import PixelPlan, PixelTrainer, prepare
from training.emoji.train import Trainer, TransformerPlan

SHIPPED = Path(emoji.__file__).parent / "model"
DEFAULTS = {"cfg_scale": 1.2, "temperature": 0.8, "top_k": 0, "top_p": 1.0}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.emoji", description=__doc__)
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="folder for downloads, checkpoints, logs and images",
    )
    parser.add_argument(
        "--model", type=Path, help="where the model is written (default: WORK/model)"
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        default=TransformerPlan.budget_s,
        help="seconds of training for the transformer",
    )
    parser.add_argument(
        "--pixel-budget-s", type=float, default=PixelPlan.budget_s, help="... for the VQ decoder"
    )
    parser.add_argument(
        "--score",
        action="store_true",
        help="do not train; generate and score with the shipped model",
    )
    parser.add_argument(
        "--run",
        type=Path,
        help="score this finished run folder of the fixed prompts instead of generating",
    )
    parser.add_argument(
        "--export",
        action="store_true",
        help="do not train; write the model from the checkpoints",
    )
    return parser.parse_args(arguments)


def load_source(work: Path) -> tuple[TrainingSource, evaluate.Floats]:
    """Return the data, the codebook (built once) and the split."""
    fetch(work / "cache")
    concepts = read_concepts()
    images = load_images(work / "cache", concepts)
    table = work / "codebook.npz"
    if not table.exists():
        build_table(images).save(table)
    names = [c.name for c in concepts]
    source = TrainingSource(
        names, TokenTable.load(table), held_out_pairs(len(names)), build_tokenizer(names)
    )
    return source, images


def train(work: Path, model: Path, options: argparse.Namespace) -> None:
    """Train what is not trained yet, then write the model folder."""
    source, images = load_source(work)
    torch.manual_seed(0)
    decoder = export.build_pixels()
    prepare(decoder, source.table.centres_KD)
    pixels = PixelTrainer(decoder, source, images, PixelPlan(budget_s=options.pixel_budget_s), work)
    transformer = Trainer(
        export.build_transformer(source.tokenizer.get_vocab_size()),
        source,
        TransformerPlan(budget_s=options.budget_s),
        work,
    )
    if not options.export:
        pixels.run()
        transformer.run()
    export.write(model, transformer.average, pixels.average, source.tokenizer, DEFAULTS)


def show(work: Path, model: Path, run: Path | None) -> int:
    """Generate the fixed prompts unless a run is given, then print the scores."""
    source, images = load_source(work)
    asks = prompts.read(source.names)
    if run is None:
        run = work / "run"
        evaluate.sample(run, model)
    images_PS = evaluate.load_run(run, asks)
    scores, rows = evaluate.score(images_PS, asks, images)
    sheet = evaluate.sheet(images_PS[:64, 0], columns=8)
    sheet.save(work / "samples.jpg", quality=92)
    (work / "scores.json").write_text(json.dumps(asdict(scores), indent=2) + "\n", "utf-8")
    sys.stdout.write(evaluate.report(scores, rows, source.names) + "\n")
    return 0 if scores.passed() else 1


def main(arguments: list[str] | None = None) -> int:
    """Run the recipe."""
    options = parse(arguments)
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    model = options.model or (SHIPPED if options.score or options.run else options.work / "model")
    if not (options.score or options.run):
        train(options.work, model, options)
    return 0 if options.export else show(options.work, model, options.run)


if __name__ == "__main__":
    sys.exit(main())
