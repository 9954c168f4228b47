"""The two models of the benchmark: the embedded one, and a transformer of about 350 M random weights with scripted acceptance."""

from dataclasses import replace
from functools import cache

import torch
from transformers import LlamaConfig, LlamaModel

from benchmarks.ours import OurLoop
from benchmarks.processors import Vocabulary
from benchmarks.published import PublishedLoop
from sjdvp.models import open_model
from sjdvp.models.random_weights import ModelShape, open_random_model
from sjdvp.profiles import resolve

CPU = torch.device("cpu")
VOCABULARY = Vocabulary()
LARGE = ModelShape(
    18, 1024, 2816, 16, 16, len(VOCABULARY.tokens)
)  # 231 M in the layers; 365 M with table and head of the vocabulary
SIDE = 32  # tokens in a row, and rows, of its images
ACCEPT = 2  # drafts that stand in each step: three tokens a forward, as reported for Lumina-mGPT (2,390 tokens in 720 forward passes)


def small_config(decoder, window, **more):
    return resolve(
        "emoji", {"decoder.preset": decoder, "decoder.window": str(window), **more}
    ).config


@cache
def small_model(dtype):
    return open_model(small_config("ar", 1).model, CPU, dtype)


def small(decoder, window, batch_size=1, step="auto", dtype=torch.float32):
    return OurLoop(
        small_model(dtype), small_config(decoder, window, **{"run.step": step}), batch_size
    )


def large_config(decoder, window):
    config = resolve(
        "lumina-mgpt-7b-768", {"decoder.preset": decoder, "decoder.window": str(window)}
    ).config
    return replace(config, model=replace(config.model, width=16 * SIDE, height=16 * SIDE))


@cache
def large_model(dtype):
    return open_random_model(LARGE, large_config("sjd", 1), CPU, dtype)


def large(dtype, window):
    """Our loop: plain decoding at window 1, the best lossless preset else."""
    return OurLoop(
        large_model(dtype),
        large_config("best" if window > 1 else "ar", window),
        1,
        min(ACCEPT, window - 1),
    )


@cache
def published_transformer(dtype):
    """Return a transformer as transformers makes it and a head, of the same shapes, with a table of the whole vocabulary."""
    settings = LlamaConfig(
        vocab_size=VOCABULARY.size, hidden_size=LARGE.hidden, intermediate_size=LARGE.feed_forward,
        num_hidden_layers=LARGE.n_layers, num_attention_heads=LARGE.n_heads, num_key_value_heads=LARGE.n_kv_heads,
    )  # fmt: skip
    decoder = LlamaModel(settings).to(dtype).eval().requires_grad_(False)
    return decoder, decoder.embed_tokens.weight.detach().clone()


def published(dtype, window):
    sampling = large_config("sjd", window).sampling
    loop = PublishedLoop(
        *published_transformer(dtype), SIDE, window, sampling.cfg_scale, sampling.top_k, ACCEPT
    )
    text = torch.randint(10000, VOCABULARY.size, (1, 31))
    loop.start(torch.cat([text, torch.tensor([[VOCABULARY.image_start]])], 1))
    return loop
