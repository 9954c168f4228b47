"""The compiled step on a GPU that is not here: few kernels, and Triton compiles all for sm_90."""

from typing import Any

import pytest
import torch
from transformers import ChameleonConfig, ChameleonModel, LlamaConfig, LlamaModel

from sjdvp import rng
from sjdvp.config import SamplingConfig
from sjdvp.decode.decoder import make_decoder
from sjdvp.decode.step import decode_step
from sjdvp.interfaces import ImageLayout
from sjdvp.models.layers import EAGER_PARTS
from sjdvp.models.transformer import Transformer
from sjdvp.presets import PRESETS
from tests.engine.conftest import settings
from tests.engine.fake_gpu import GPU, fake_gpu
from tests.engine.inductor import (
    compile_kernels,
    launches,
    pretend_to_have_an_h100,
    source_of,
)

pytestmark = pytest.mark.slow
pytest.importorskip("triton")

V = 8192


@pytest.fixture(autouse=True)
def h100(monkeypatch):
    pretend_to_have_an_h100(monkeypatch)
    with fake_gpu(), torch.inference_mode():
        yield


@pytest.mark.parametrize("name", PRESETS)
def test_the_decoding_is_few_kernels(monkeypatch, tmp_path, name):
    decoder = make_decoder(
        settings(name, window=1 if name == "ar" else 32).decoder,
        SamplingConfig(top_k=2000),
        ImageLayout(48, 48, V, row_end=True),
        lambda: torch.zeros(V, 256, device=GPU),
        lambda codebook, k: torch.zeros(V, k, dtype=torch.int64, device=GPU),
    )
    state = decoder.idle_state(1, torch.float32, GPU)
    logits_1WV = torch.zeros(1, decoder.window, V, device=GPU)
    source = source_of(
        monkeypatch, lambda state, logits: decode_step(decoder, state, logits), state, logits_1WV
    )
    assert len(launches(source)) <= 40
    assert compile_kernels(source, tmp_path) > 5
    assert ".to(tl.int64) * XBLOCK" not in source  # indices are 32 bits wide


def test_an_index_that_is_multiplied_by_64_bits_does_not_compile(monkeypatch, tmp_path):
    """What `rng.counters` is for."""
    key = torch.zeros(2, 1, dtype=torch.int64, device=GPU)

    def noise(token_V):
        return rng.exponential(key, int(rng.Purpose.GUMBEL), token_V)

    source = source_of(monkeypatch, lambda: noise(rng.counters(0, V, GPU)))
    assert compile_kernels(source, tmp_path) == 1
    source = source_of(monkeypatch, lambda: noise(torch.arange(V, device=GPU)))
    with pytest.raises(Exception, match="out of range"):
        compile_kernels(source, tmp_path)


SHAPE = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "vocab_size": 16,
}


@pytest.mark.parametrize(
    ("model", "config", "at_most"),
    [
        (LlamaModel, LlamaConfig(**SHAPE), 5),
        (ChameleonModel, ChameleonConfig(**SHAPE, vocabulary_map={}), 6),
    ],
)
def test_the_parts_of_a_layer_are_few_kernels(
    monkeypatch, tmp_path, model: Any, config: Any, at_most: int
):
    with torch.inference_mode(False), GPU:
        decoder = model._from_config(config, dtype=torch.bfloat16)
        layer = Transformer(decoder)._decoder.layers[0]
    x_RWD = torch.zeros(2, 32, 4096, dtype=torch.bfloat16, device=GPU)
    angles = torch.zeros(2, 32, 1, 128, dtype=torch.bfloat16, device=GPU)
    out = torch.zeros(2, 32, 32, 128, dtype=torch.bfloat16, device=GPU)
    found = []
    for part, args in (
        (EAGER_PARTS.before, (x_RWD, angles, angles)),
        (EAGER_PARTS.after, (x_RWD, out)),
    ):
        source = source_of(monkeypatch, lambda *args, part=part: part(layer, *args), *args)
        found += launches(source)
        compile_kernels(source, tmp_path)
    assert sum(kernel.startswith("triton") for kernel in found) <= at_most
