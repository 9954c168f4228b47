"""The two models: the embedded one, and a transformer of 365 M random weights."""

from dataclasses import replace
from functools import cache

import torch
from transformers import LlamaConfig, LlamaModel

from benchmarks.engine_loop import EngineLoop
from benchmarks.published_loop import PublishedLoop, Vocabulary
from sjdvp.decode.distributions import Dense, Sparse
from sjdvp.models import open_model
from sjdvp.models.random_weights import open_random_model
from sjdvp.models.shapes import ModelShape
from sjdvp.profiles import resolve
from sjdvp.sampling import n_support

CPU = torch.device("cpu")
VOCABULARY = Vocabulary()
# 231 M weights in the layers, 365 M with the table and the head of the vocabulary.
LARGE = ModelShape(18, 1024, 2816, 16, 16, len(VOCABULARY.image_tokens))
SIDE = 32  # image tokens in an image row, and image rows, of the large model
# Draft tokens accepted in each step, scripted for random weights: three tokens per forward pass, as
# reported for Lumina-mGPT (2,390 tokens in 720 forward passes).
ACCEPT = 2


def small_config(decoder, window, **more):
    settings = {"decoder.preset": decoder, "decoder.window": str(window), **more}
    return resolve("emoji", settings).config


@cache
def small_model(dtype):
    return open_model(small_config("ar", 1).model, CPU, dtype)


def small(decoder, window, batch_size=1, step="auto", dtype=torch.float32):
    config = small_config(decoder, window, **{"run.step": step})
    return EngineLoop(small_model(dtype), config, batch_size)


def large_config(decoder, window):
    settings = {"decoder.preset": decoder, "decoder.window": str(window)}
    config = resolve("lumina-mgpt-7b-768", settings).config
    return replace(config, model=replace(config.model, width=16 * SIDE, height=16 * SIDE))


@cache
def large_model(dtype):
    return open_random_model(LARGE, large_config("sjd", 1), CPU, dtype)


def large(dtype, window):
    """Return our loop on the large model: `ar` with window 1, else the best lossless preset."""
    config = large_config("best" if window > 1 else "ar", window)
    return EngineLoop(large_model(dtype), config, 1, min(ACCEPT, window - 1))


def wide(dtype, vocab_size, window):
    """Return two loops on a model with a wide vocabulary: dense and sparse distributions."""
    shape, config = replace(LARGE, vocab_size=vocab_size), large_config("best", window)
    model = open_random_model(shape, config, CPU, dtype)
    support = n_support(config.sampling, vocab_size)
    forms = Dense(vocab_size, vocab_size), Sparse(vocab_size, support)
    return [EngineLoop(model, config, 1, min(ACCEPT, window - 1), form) for form in forms]


@cache
def published_transformer(dtype):
    """Return a plain Llama of the same shapes, and a head over the whole vocabulary."""
    settings = LlamaConfig(
        vocab_size=VOCABULARY.size,
        hidden_size=LARGE.hidden,
        intermediate_size=LARGE.feed_forward,
        num_hidden_layers=LARGE.n_layers,
        num_attention_heads=LARGE.n_heads,
        num_key_value_heads=LARGE.n_kv_heads,
    )
    decoder = LlamaModel(settings).to(dtype).eval().requires_grad_(False)
    return decoder, decoder.embed_tokens.weight.detach().clone()


def published(dtype, window):
    sampling = large_config("sjd", window).sampling
    decoder, head_VD = published_transformer(dtype)
    loop = PublishedLoop(decoder, head_VD, SIDE, window, sampling.cfg_scale, sampling.top_k, ACCEPT)
    text = torch.randint(10000, VOCABULARY.size, (1, 31))
    loop.start(torch.cat([text, torch.tensor([[VOCABULARY.image_start]])], 1))
    return loop
