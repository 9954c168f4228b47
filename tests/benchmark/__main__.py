"""The side-by-side benchmark: `python -m tests.benchmark`. One JSON object for each figure, as it comes.

On a CPU times are processor seconds of one thread: what a clock shows on a machine with nothing else to do, and the same on a busy
one. Alternatives take turns; medians of at least five.

Passes of a decoding step over [B, W, V] values, reads and writes, forward left out, embedded model at window 16 (passes.py
counts them anew at each run): sjd 36, same-noise 135, sjdvp 94, coupled-vp 113. The published loop goes over the whole vocabulary,
eight times as many values.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from sjdvp.backbones.generic import EMBEDDED
from sjdvp.backbones.generic import load as load_folder
from sjdvp.backbones.stand_in import Shape, open_stand_in
from sjdvp.config import ModelConfig, RunConfig
from sjdvp.decode.step import window_input
from sjdvp.profiles import resolve
from tests.benchmark.ours import advance, seated
from tests.benchmark.passes import count
from tests.benchmark.published import PublishedLoop

CPU = torch.device("cpu")
VOCABULARY, CODES = 65536, 8192
LARGE = Shape(18, 1024, 2816, 16, 16, CODES)  # 231 M in the layers; 365 M with embeddings and head of the whole vocabulary
THROUGHPUT = [("ar", 1, 1), ("ar", 1, 8), ("ar", 1, 32), ("best", 4, 8), ("best", 8, 4), ("best", 16, 1), ("sjdvp", 16, 1)]
ACCEPT = 2  # drafts that stand in each step: three codes a forward, as reported for Lumina-mGPT (decoders of 2,390 / 720)


def seconds(work):
    started = time.process_time()
    work()
    return time.process_time() - started


def in_turns(repeats, **works):
    """Return the median and the interquartile range of each, in milliseconds, taking turns."""
    times = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            spent = seconds(work)
            if turn:  # the first is a warm-up
                times[name].append(1e3 * spent)
    spread = {name: statistics.quantiles(each, n=4) for name, each in times.items()}
    return {name: (round(q[1], 1), round(q[2] - q[0], 1)) for name, q in spread.items()}


def say(figure, **facts):
    print(json.dumps({"figure": figure, **facts}), flush=True)


def bare_forward(engine):
    with torch.inference_mode():
        codes, pos = window_input(engine.state, engine.decoder.window)
        engine.forward(codes, pos, engine.forward.reach(dict(enumerate(engine.state.n_B.tolist()))))


def large_config(decoder, window):
    config = resolve("lumina-mgpt-7b-768", {"decoder.preset": decoder, "decoder.window": str(window)}).config
    return RunConfig(config.profile, "", ModelConfig(width=512, height=512), config.sampling, config.decoder, config.run)


def published(backbone, config, window):
    head = torch.empty(VOCABULARY, LARGE.hidden, dtype=backbone.dtype).normal_(0, 0.02)
    decoder = backbone.trunk._decoder
    decoder.set_input_embeddings(torch.nn.Embedding.from_pretrained(head))
    decoder.set_attn_implementation("sdpa")
    loop = PublishedLoop(decoder, head, range(4, 4 + CODES), window, config.sampling.cfg_scale, config.sampling.top_k, ACCEPT)
    loop.start(torch.randint(4, 4 + CODES, (2, 32)))
    return loop


def large(dtype, windows, repeats):
    """Figures 1, 2 and 4 on the large trunk: batch 1, guidance, scripted acceptance."""
    backbone = open_stand_in(LARGE, large_config("sjd", 1), CPU, dtype)
    other = open_stand_in(LARGE, large_config("sjd", 1), CPU, dtype)
    step_ms = {}
    for window in windows:
        accept = min(ACCEPT, window - 1)
        engine = seated(backbone, large_config("best" if window > 1 else "ar", window), 1, accept)
        works = {"forward": lambda e=engine: bare_forward(e), "step": lambda e=engine: advance(e)}
        if window > 1:
            loop = published(other, large_config("sjd", window), window)
            works["published"] = loop.step
        times = in_turns(repeats, **works)
        step_ms[window] = times["step"][0]
        ratio = round(times["step"][0] / times["forward"][0], 3)
        facts = {"dtype": str(dtype), "window": window, "ms": times, "step_over_forward": ratio}
        if window > 1:
            facts["published_over_ours"] = round(times["published"][0] / times["step"][0], 2)
            facts["published_reads_per_step"] = loop.reads / (repeats + 1)
        say("1+2: step, 350 M trunk", **facts)
    for window in windows[1:]:
        gain = (min(ACCEPT, window - 1) + 1) / 1
        say("4: latency", window=window, nfe_ratio=gain, time_ratio=round(gain * step_ms[1] / step_ms[window], 2))


def small(folder, repeats):
    """Figures 1 and 3 on the embedded model."""
    backbone = load_folder(folder, CPU, torch.float32)
    for decoder, window in (("ar", 1), ("sjd", 16), ("sjdvp", 16), ("best", 16), ("best", 32)):
        config = resolve("emoji", {"decoder.preset": decoder, "decoder.window": str(window)}).config
        engine = seated(backbone, config, 1)
        times = in_turns(repeats, forward=lambda e=engine: bare_forward(e), step=lambda e=engine: advance(e))
        ratio = round(times["step"][0] / times["forward"][0], 3)
        say("1: step, embedded model", decoder=decoder, window=window, ms=times, step_over_forward=ratio, passes=count(engine))
    throughput(backbone, folder)


def throughput(backbone, folder):
    """Figure 3: images a processor second, whole images, ours against transformers' generate with its own guidance."""
    for decoder, window, n_rows in THROUGHPUT:
        engine = seated(backbone, resolve("emoji", {"decoder.preset": decoder, "decoder.window": str(window)}).config, n_rows)
        steps = 0
        started = time.process_time()
        while min(advance(engine)) < backbone.grid.length:
            steps += 1
        rate = round(n_rows / (time.process_time() - started), 3)
        say("3: ours", decoder=decoder, window=window, batch=n_rows, steps=steps, images_per_s=rate)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    codes = json.loads((folder / "sjdvp.json").read_text())
    outside = [i for i in range(model.config.vocab_size) if not codes["code_offset"] <= i < codes["code_offset"] + codes["n_codes"]]
    for batch in (1, 8, 32):
        prompt = torch.full((batch, 8), codes["boi_id"])
        spent = seconds(lambda p=prompt: generate(model, p, outside, backbone.grid.length))
        say("3: transformers generate", batch=batch, images_per_s=round(batch / spent, 3))


def generate(model, prompt, outside, length):
    with torch.inference_mode():
        model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=0.8, top_k=0, guidance_scale=1.5,
            max_new_tokens=length, min_new_tokens=length, suppress_tokens=outside, pad_token_id=0,
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["small", "large"], help="one of the two models; default both")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="of the large trunk")
    parser.add_argument("--windows", default="1,16,32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", type=Path, default=EMBEDDED)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part != "large":
        small(options.model, options.repeats)
    if options.part != "small":
        large(getattr(torch, options.dtype), [int(w) for w in options.windows.split(",")], options.repeats)


if __name__ == "__main__":
    main()
