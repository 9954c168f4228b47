"""Figure 3: images a second of the embedded model, over batch sizes and windows, beside transformers' `generate`."""

import json
from functools import partial

import torch
from transformers import LlamaForCausalLM

from benchmarks.models import small, small_model
from benchmarks.timing import clock, head, in_turns, ms, row
from sjdvp.models.generic import EMBEDDED


def images(options):
    """Print the cheapest settings first, then the best of either side in turns."""
    head(
        f"Images a second, embedded model, pixels left out, step {options.step}",
        "dtype", "", "batch", "window", "images/s", "tokens a step and row",
    )  # fmt: skip
    for dtype in options.dtypes:
        name = str(dtype).removeprefix("torch.")
        theirs, ours = {}, {}
        for batch in options.generate:
            theirs[batch] = 1 / generated(batch, dtype)
            row(name, "transformers `generate`", batch, "–", theirs[batch], 1.0)
        for batch, window in sorted(
            ((b, w) for b in options.batches for w in options.image_windows),
            key=lambda bw: (bw[0] * bw[1], bw),
        ):
            seconds, tokens = drawn(batch, window, dtype, options.step)
            ours[batch, window] = 1 / seconds
            row(name, f"ours, {_decoder(window)}", batch, window, ours[batch, window], tokens)
        if theirs and ours:
            _beside(max(theirs, key=theirs.get), max(ours, key=ours.get), dtype, options)


def _beside(their_batch, point, dtype, options):
    """Compare the best of ours with the best of `generate`, in turns."""
    measures = {
        "theirs": partial(generated, their_batch, dtype),
        "ours": lambda: drawn(*point, dtype, options.step)[0],
    }
    seconds = in_turns(options.repeats, **measures)
    spread = {name: f"{1 / time:.2f} ± {time.iqr / time**2:.2f}" for name, time in seconds.items()}
    print(
        f"\n{options.repeats} in turns: ours (batch {point[0]}, window {point[1]}) {spread['ours']}, "
        f"`generate` (batch {their_batch}) {spread['theirs']}, ratio {seconds['theirs'] / seconds['ours']:.2f}\n",
        flush=True,
    )


def _decoder(window):
    return "best" if window > 1 else "ar"


def drawn(batch_size, window, dtype, step):
    """Return seconds an image and tokens a step and row. Counted until a row ends: the engine would fill it again at once."""
    loop = small(_decoder(window), window, batch_size, step, dtype)
    length, n_steps, started = small_model(dtype).layout.length, 0, clock()
    loop.sequence()
    while max(loop.places) < length:
        loop.step()
        n_steps += 1
    tokens = sum(loop.places)
    return (clock() - started) * length / tokens, tokens / n_steps / batch_size


def generated(batch, dtype):
    """Return seconds an image of `generate` with its own guidance."""
    model = LlamaForCausalLM.from_pretrained(EMBEDDED, dtype=dtype)
    about = json.loads((EMBEDDED / "sjdvp.json").read_text())
    tokens = range(about["first_image_id"], about["first_image_id"] + about["vocab_size"])
    prompt, length = torch.full((batch, 8), about["boi_id"]), small_model(dtype).layout.length
    settings = dict(
        do_sample=True, temperature=0.8, top_k=0, guidance_scale=1.5, max_new_tokens=length, min_new_tokens=length,
        suppress_tokens=[i for i in range(model.config.vocab_size) if i not in tokens], pad_token_id=0,
    )  # fmt: skip
    with torch.inference_mode():
        return (
            1e-3
            / batch
            * ms(lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings))
        )
