"""Images per second of the embedded model over batch sizes and windows, and of `generate`."""

import json
from functools import partial

import torch
from transformers import LlamaForCausalLM

from benchmarks.models import small, small_model
from benchmarks.timing import clock, in_turns, milliseconds, print_head, print_row
from sjdvp.models.generic import EMBEDDED


def images(options):
    """Print the cheapest settings first, then the fastest of both sides, alternating."""
    print_head(
        f"Images per second, embedded model, without pixels, step {options.step}",
        "dtype", "", "batch", "window", "images/s", "tokens per step and slot",
    )  # fmt: skip
    for dtype in options.dtypes:
        theirs, ours = measure_all(dtype, options)
        if theirs and ours:
            compare_fastest(max(theirs, key=theirs.get), max(ours, key=ours.get), dtype, options)


def measure_all(dtype, options):
    name = str(dtype).removeprefix("torch.")
    theirs, ours = {}, {}
    for batch in options.generate:
        theirs[batch] = 1 / generate_s(batch, dtype)
        print_row(name, "transformers `generate`", batch, "–", theirs[batch], 1.0)
    points = [(batch, window) for batch in options.batches for window in options.image_windows]
    for batch, window in sorted(points, key=lambda point: (point[0] * point[1], point)):
        seconds, tokens = engine_s(batch, window, dtype, options.step)
        ours[batch, window] = 1 / seconds
        print_row(name, f"ours, {_decoder(window)}", batch, window, ours[batch, window], tokens)
    return theirs, ours


def compare_fastest(their_batch, point, dtype, options):
    """Measure the fastest setting of both sides, alternating."""
    seconds = in_turns(
        options.repeats,
        theirs=partial(generate_s, their_batch, dtype),
        ours=lambda: engine_s(*point, dtype, options.step)[0],
    )
    rate = {name: f"{1 / time:.2f} ± {time.iqr / time**2:.2f}" for name, time in seconds.items()}
    print(
        f"\n{options.repeats} alternating runs: "
        f"ours (batch {point[0]}, window {point[1]}) {rate['ours']}, "
        f"`generate` (batch {their_batch}) {rate['theirs']}, "
        f"ratio {seconds['theirs'] / seconds['ours']:.2f}\n",
        flush=True,
    )


def _decoder(window):
    return "best" if window > 1 else "ar"


def engine_s(batch_size, window, dtype, step):
    """Return seconds per image, and tokens per step and slot.

    Counted until the first image is done: from there on the engine would refill its slot.
    """
    loop = small(_decoder(window), window, batch_size, step, dtype)
    length, n_steps, started = small_model(dtype).layout.length, 0, clock()
    loop.restart()
    while max(loop.n_committed) < length:
        loop.step()
        n_steps += 1
    tokens = sum(loop.n_committed)
    return (clock() - started) * length / tokens, tokens / n_steps / batch_size


def generate_s(batch, dtype):
    """Return seconds per image of transformers' `generate` with its own guidance."""
    model = LlamaForCausalLM.from_pretrained(EMBEDDED, dtype=dtype)
    about = json.loads((EMBEDDED / "sjdvp.json").read_text())
    first, length = about["first_image_id"], small_model(dtype).layout.length
    image_tokens = range(first, first + about["vocab_size"])
    prompt = torch.full((batch, 8), about["boi_id"])
    settings = dict(
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        temperature=0.8,
        top_k=0,
        guidance_scale=1.5,
        max_new_tokens=length,
        min_new_tokens=length,
        suppress_tokens=[i for i in range(model.config.vocab_size) if i not in image_tokens],
        pad_token_id=0,
    )
    with torch.inference_mode():
        return 1e-3 / batch * milliseconds(lambda: model.generate(prompt, **settings))
