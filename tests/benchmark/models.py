"""The two models of the benchmark: the embedded one, and a trunk of about 350 M random weights with scripted acceptance."""

from dataclasses import replace
from functools import cache

import torch
from torch.nn import Embedding

from sjdvp.backbones import open_backbone
from sjdvp.backbones.stand_in import Shape, open_stand_in
from sjdvp.profiles import resolve
from tests.benchmark.ours import OurLoop
from tests.benchmark.processors import Vocabulary
from tests.benchmark.published import PublishedLoop

CPU = torch.device("cpu")
VOCABULARY = Vocabulary()
LARGE = Shape(18, 1024, 2816, 16, 16, len(VOCABULARY.codes))  # 231 M in the layers; 365 M with table and head of the vocabulary
SIDE = 32  # codes in a row, and rows, of its pictures
ACCEPT = 2  # drafts that stand in each step: three codes a forward, as reported for Lumina-mGPT (2,390 codes in 720 forwards)


def small_config(decoder, window, **more):
    return resolve("emoji", {"decoder.preset": decoder, "decoder.window": str(window), **more}).config


@cache
def small_backbone():
    config = small_config("ar", 1)
    return open_backbone(config.model, CPU, torch.float32)


def small(decoder, window, n_rows=1, step="auto"):
    return OurLoop(small_backbone(), small_config(decoder, window, **{"run.step": step}), n_rows)


def large_config(decoder, window):
    config = resolve("lumina-mgpt-7b-768", {"decoder.preset": decoder, "decoder.window": str(window)}).config
    return replace(config, model=replace(config.model, width=16 * SIDE, height=16 * SIDE))


@cache
def large_backbone(dtype):
    return open_stand_in(LARGE, large_config("sjd", 1), CPU, dtype)


def large(dtype, window):
    """Our loop: plain decoding at window 1, the best lossless preset else."""
    return OurLoop(large_backbone(dtype), large_config("best" if window > 1 else "ar", window), 1, min(ACCEPT, window - 1))


@cache
def published_trunk(dtype):
    """Return a trunk and a head of the same shapes, with a table of the whole vocabulary and torch's attention."""
    decoder = open_stand_in(LARGE, large_config("sjd", 1), CPU, dtype).trunk._decoder
    head_VD = torch.empty(VOCABULARY.size, LARGE.hidden, dtype=dtype).normal_(0, 0.02)
    decoder.set_input_embeddings(Embedding.from_pretrained(head_VD))
    decoder.set_attn_implementation("sdpa")
    return decoder, head_VD


def published(dtype, window):
    sampling = large_config("sjd", window).sampling
    loop = PublishedLoop(*published_trunk(dtype), SIDE, window, sampling.cfg_scale, sampling.top_k, ACCEPT)
    text = torch.randint(10000, VOCABULARY.size, (1, 31))
    loop.start(torch.cat([text, torch.tensor([[VOCABULARY.image_start]])], 1))
    return loop
