"""One command makes the embedded model again and shows its figures; it goes on where it stopped.

python -m training.emoji --work FOLDER              everything
python -m training.emoji --work FOLDER --score      only draw and score the model that ships
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from PIL import Image

from sjdvp.models import emoji
from training.emoji import evaluate, export, prompts
from training.emoji.batches import Source
from training.emoji.captions import build_tokenizer, held_out_pairs
from training.emoji.codes import CodeTable, build_table
from training.emoji.data import fetch, load_pictures, read_concepts
from training.emoji.pixels import PixelPlan, PixelTrainer, prepare
from training.emoji.train import Plan, Trainer

SHIPPED = Path(emoji.__file__).parent / "model"
DEFAULTS = {"cfg_scale": 1.5, "temperature": 0.8, "top_k": 0, "top_p": 1.0}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.emoji", description=__doc__)
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="folder for downloads, checkpoints, logs and drawings",
    )
    parser.add_argument(
        "--model", type=Path, help="where the model is written (default: WORK/model)"
    )
    parser.add_argument(
        "--budget-s", type=float, default=Plan.budget_s, help="seconds of training for the trunk"
    )
    parser.add_argument(
        "--pixel-budget-s", type=float, default=PixelPlan.budget_s, help="... for the pixel decoder"
    )
    parser.add_argument(
        "--score", action="store_true", help="do not train: draw and score the model that ships"
    )
    parser.add_argument(
        "--run",
        type=Path,
        help="score this finished run folder of the fixed prompts instead of drawing",
    )
    parser.add_argument(
        "--export",
        action="store_true",
        help="do not train on: write the model from the checkpoints, stop",
    )
    return parser.parse_args(arguments)


def load_source(work: Path) -> tuple[Source, evaluate.Floats]:
    """Bring together the data, the codebook (built once) and the split."""
    fetch(work / "cache")
    concepts = read_concepts()
    pictures = load_pictures(work / "cache", concepts)
    table = work / "codes.npz"
    if not table.exists():
        build_table(pictures).save(table)
    names = [c.name for c in concepts]
    source = Source(
        names, CodeTable.load(table), held_out_pairs(len(names)), build_tokenizer(names)
    )
    return source, pictures


def train(work: Path, model: Path, options: argparse.Namespace) -> None:
    """Train what is not trained yet and write the model folder."""
    source, pictures = load_source(work)
    torch.manual_seed(0)
    decoder = export.build_pixels()
    prepare(decoder, source.table.centres_KD)
    pixels = PixelTrainer(
        decoder, source, pictures, PixelPlan(budget_s=options.pixel_budget_s), work
    )
    trunk = Trainer(
        export.build_trunk(source.tokenizer.get_vocab_size()),
        source,
        Plan(budget_s=options.budget_s),
        work,
    )
    if not options.export:
        pixels.run()
        trunk.run()
    export.write(model, trunk.shipped(), pixels.average, source.tokenizer, DEFAULTS)


def show(work: Path, model: Path, run: Path | None) -> int:
    """Draw the fixed prompts unless a run is given, then print the figures."""
    source, pictures = load_source(work)
    asks = prompts.read(source.names)
    if run is None:
        run = work / "run"
        evaluate.sample(run, model)
    drawn = evaluate.load_run(run, asks)
    figures, rows = evaluate.score(drawn, asks, pictures)
    evaluate.sheet(drawn[:96, 0]).quantize(256, dither=Image.Dither.NONE).save(
        work / "samples.png", optimize=True
    )
    (work / "figures.json").write_text(json.dumps(asdict(figures), indent=2) + "\n", "utf-8")
    sys.stdout.write(evaluate.report(figures, rows, source.names) + "\n")
    return 0 if figures.passed() else 1


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
