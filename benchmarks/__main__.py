"""The side-by-side benchmark: `python -m benchmarks [TABLE ...]`. Markdown tables, row by row as they come.

    steps      a step over the bare forward, both models          about 3 minutes (bfloat16 two of them)
    published  our step against a loop in the published style     about 4 minutes (bfloat16 three of them)
    latency    one image: the best lossless preset against ar     about 3 minutes (bfloat16 two of them)
    images     images a second over batch and window              about 15 minutes; --batches 4,8 --image-windows 4 for a few points
    start      start-up of the command line                       about 2 minutes

The time of one thread is its processor seconds: what a clock shows on a machine with nothing else to do, and nearly the same on a
busy one.
"""

import argparse

import torch

from benchmarks.images import images
from benchmarks.start import start
from benchmarks.tables import latency, published_style, steps

TABLES = {
    "steps": steps,
    "published": published_style,
    "latency": latency,
    "images": images,
    "start": start,
}


def numbers(text):
    return [int(word) for word in text.split(",") if word]


def dtypes(text):
    return [getattr(torch, word) for word in text.split(",") if word]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", choices=[*TABLES, []], help="default: all"
    )
    parser.add_argument(
        "--dtypes",
        type=dtypes,
        default="float32,bfloat16",
        help="of the large transformer, and of images",
    )
    parser.add_argument(
        "--windows", type=numbers, default="16,32", help="of steps, published and latency"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--batches", type=numbers, default="1,8,32,48", help="of images; empty: only generate"
    )
    parser.add_argument("--image-windows", type=numbers, default="1,4,8,16", help="of images")
    parser.add_argument(
        "--generate",
        type=numbers,
        default="1,8,32,96",
        help="batches of transformers' generate; empty: none",
    )
    parser.add_argument(
        "--step",
        choices=["eager", "compile"],
        default="eager",
        help="form of the step of the embedded model",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="with more than one, times are the wall's: on a quiet machine only",
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.tables or TABLES:
        TABLES[name](options)


if __name__ == "__main__":
    main()
