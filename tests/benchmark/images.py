"""Figure 3: images a second of the embedded model, over batch sizes and windows, beside transformers' `generate`."""

import json

import torch
from transformers import LlamaForCausalLM

from sjdvp.backbones.generic import EMBEDDED
from tests.benchmark.models import small, small_backbone
from tests.benchmark.timing import clock, head, ms, row


def images(options):
    """Print the cheapest settings first, then the ratio of the best."""
    columns = ("", "batch", "window", "images/s", "codes a step and row")
    head(f"Images a second, embedded model, pixels left out, step {options.step}", *columns)
    theirs = {batch: generated(batch) for batch in options.generate}
    for batch, rate in theirs.items():
        row("transformers `generate`", batch, "–", rate, 1.0)
    ours = {}
    for batch, window in sorted(
        ((b, w) for b in options.batches for w in options.image_windows), key=lambda bw: (bw[0] * bw[1], bw)
    ):
        decoder = "best" if window > 1 else "ar"
        ours[batch, window], codes = drawn(decoder, window, batch, options.step)
        row(f"ours, {decoder}", batch, window, ours[batch, window], codes)
    if theirs and ours:
        (batch, window), their_batch = max(ours, key=ours.get), max(theirs, key=theirs.get)
        ratio = ours[batch, window] / theirs[their_batch]
        print(
            f"\nBest of ours (batch {batch}, window {window}) over best of `generate` (batch {their_batch}): {ratio:.2f}",
            flush=True,
        )


def drawn(decoder, window, n_rows, step):
    """Return images a second and codes a step and row. Counted until a row ends: the engine would fill it again at once."""
    loop = small(decoder, window, n_rows, step)
    length, n_steps, started = small_backbone().grid.length, 0, clock()
    loop.seat()
    while max(loop.places) < length:
        loop.step()
        n_steps += 1
    codes = sum(loop.places)
    return codes / length / (clock() - started), codes / n_steps / n_rows


def generated(batch):
    """Return images a second of `generate` with its own guidance."""
    model = LlamaForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)
    about = json.loads((EMBEDDED / "sjdvp.json").read_text())
    codes = range(about["code_offset"], about["code_offset"] + about["n_codes"])
    prompt, length = torch.full((batch, 8), about["boi_id"]), small_backbone().grid.length
    settings = dict(
        do_sample=True, temperature=0.8, top_k=0, guidance_scale=1.5, max_new_tokens=length, min_new_tokens=length,
        suppress_tokens=[i for i in range(model.config.vocab_size) if i not in codes], pad_token_id=0,
    )  # fmt: skip
    with torch.inference_mode():
        return 1e3 * batch / ms(lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings))
