"""Compare sjdvp with what people run otherwise: `python -m benchmarks [TABLE ...]`, from a
checkout.

    steps      a decode step and the bare forward pass, two models    about 3 minutes
    published  our step and a loop in the published style             about 4 minutes
    wide       dense and sparse distributions, wide vocabularies      about 5 minutes
    latency    one image: the best lossless preset and `ar`           about 3 minutes
    images     images per second over batch sizes and windows         about 15 minutes
    startup    from the shell to the help and to the first image      about 2 minutes
    expected   step times from counted operations, and measured ones  about 2 minutes
    loading    memory while loading 1.4 B weights in each format      about 5 minutes
    cards      every profile on four GPUs, computed without one       about 10 minutes

Prints Markdown tables, row by row. With one thread, times are processor seconds: what a clock shows
on an idle machine, and nearly the same on a busy one.
"""

import argparse

import torch

from benchmarks.expected import cards, expected
from benchmarks.images import images
from benchmarks.loading import loading
from benchmarks.startup import startup
from benchmarks.tables import latency, published, steps, wide

TABLES = {
    "steps": steps,
    "published": published,
    "wide": wide,
    "latency": latency,
    "images": images,
    "startup": startup,
    "expected": expected,
    "loading": loading,
    "cards": cards,
}


def numbers(text):
    return [int(word) for word in text.split(",") if word]


def dtypes(text):
    return [getattr(torch, word) for word in text.split(",") if word]


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("tables", nargs="*", metavar="TABLE", choices=[*TABLES, []], help="default: all")
    add(
        "--dtypes", type=dtypes, default="float32,bfloat16", help="of the large model and of images"
    )
    add("--windows", type=numbers, default="16,32", help="of steps, published, wide and latency")
    add("--repeats", type=int, default=5, help="measurements of each number, after one to warm up")
    add("--batches", type=numbers, default="1,8,32,48", help="of images; empty: only generate")
    add("--image-windows", type=numbers, default="1,4,8,16", help="of images")
    add(
        "--generate",
        type=numbers,
        default="1,8,32,96",
        help="batch sizes of transformers' generate",
    )
    add("--step", choices=["eager", "compile"], default="eager", help="of the embedded model")
    add("--threads", type=int, default=1, help="above 1, times are wall time: on an idle machine")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.tables or TABLES:
        TABLES[name](options)


if __name__ == "__main__":
    main()
