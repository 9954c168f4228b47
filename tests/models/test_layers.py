"""Fused layers: what transformers' layers give, in fewer operations; packed products."""

import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    ChameleonConfig,
    ChameleonModel,
    Emu3TextConfig,
    Emu3TextModel,
    GemmaConfig,
    GemmaModel,
    LlamaConfig,
    LlamaModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
)
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from sjdvp.models import layers
from sjdvp.models.layers import PackedLinear, RmsNorm, packed, with_fused_norms
from sjdvp.models.transformer import Transformer

META = torch.device("meta")
SIZES = [(256, 704), (704, 256), (256, 1024), (32, 96), (33, 7)]
SMALL = {
    "vocab_size": 16,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
DECODERS: dict[str, Any] = {
    "llama": lambda: LlamaModel(LlamaConfig(**SMALL)),
    "heads of 20": lambda: LlamaModel(LlamaConfig(**SMALL, head_dim=20)),
    "qwen2": lambda: Qwen2Model(Qwen2Config(**SMALL)),  # biases of queries, keys and values
    "qwen3": lambda: Qwen3Model(Qwen3Config(**SMALL, head_dim=24)),  # norms of queries and keys
    "gemma": lambda: GemmaModel(GemmaConfig(**SMALL, head_dim=16)),
    "emu3": lambda: Emu3TextModel(Emu3TextConfig(**{**SMALL, "pad_token_id": 0})),
    "chameleon": lambda: ChameleonModel(ChameleonConfig(**SMALL, vocabulary_map={})),
    "chameleon swin": lambda: ChameleonModel(
        ChameleonConfig(**SMALL, swin_norm=True, vocabulary_map={})
    ),
}


def random_decoder(name: str) -> Any:
    torch.manual_seed(0)
    decoder = DECODERS[name]()
    for weight in decoder.parameters():  # norms and biases too, which start at 1 and 0
        weight.data.add_(0.2 * torch.randn_like(weight))
    return decoder.eval()


@pytest.mark.process
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_fused_layers_give_what_those_of_transformers_give(name: str, dtype: torch.dtype) -> None:
    decoder, window = random_decoder(name), 12
    x_RWD = torch.randn(3, window, SMALL["hidden_size"])
    expected = decoder(inputs_embeds=x_RWD).last_hidden_state
    rounded = decoder.to(dtype)(inputs_embeds=x_RWD.to(dtype)).last_hidden_state
    transformer = Transformer(decoder)
    cache = transformer.new_cache(3, 16)
    slots_RW = torch.arange(window).expand(3, -1)
    mask_R1WC = (torch.arange(16) <= slots_RW[..., None])[:, None]
    found = transformer(x_RWD.to(dtype), slots_RW, mask_R1WC, cache)
    scale = expected.abs().max()
    if dtype == torch.float32:
        assert (found - expected).abs().max() < 2e-6 * scale
    else:  # as far from float32 as transformers is, give or take
        theirs = (rounded - expected).abs().mean()
        assert (found - expected).abs().mean() < 1.2 * theirs


class Kernels(TorchDispatchMode):
    """Count the operations that write a tensor: views and conversions to the same dtype do not."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        storages = {x.untyped_storage()._cdata for x in args if isinstance(x, Tensor)}
        first = out[0] if isinstance(out, tuple | list) else out
        writes = func._schema.is_mutable or first.untyped_storage()._cdata not in storages
        self.n += writes
        return out


@pytest.mark.parametrize(
    ("model", "config", "at_most"),
    [(LlamaModel, LlamaConfig, 560), (ChameleonModel, ChameleonConfig, 630)],
)
def test_a_forward_pass_of_7b_is_few_operations(model: Any, config: Any, at_most: int) -> None:
    """As torch dispatches them in inference mode, so that an RMS norm is one, as on a GPU."""
    shape = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32}
    more = {"vocabulary_map": {}} if config is ChameleonConfig else {}
    with META:
        decoder = model(config(**{**SMALL, **shape, **heads}, **more))
        if config is ChameleonConfig:
            del decoder.vqmodel
        x_RWD = torch.empty(2, 32, 4096, dtype=torch.bfloat16)
        slots_RW = torch.zeros(2, 32, dtype=torch.int64)
        mask_R1WC = torch.ones(2, 1, 32, 2704, dtype=torch.bool)
    transformer = Transformer(decoder.to(torch.bfloat16))
    cache = transformer.new_cache(2, 2704)
    with torch.inference_mode(), Kernels() as kernels:
        transformer(x_RWD, slots_RW, mask_R1WC, cache)
    assert kernels.n <= at_most


def test_concatenated_weights_take_no_more_memory() -> None:
    decoder = random_decoder("qwen2")
    n_bytes = sum(weight.nbytes for weight in decoder.parameters())
    assert Transformer(decoder).n_bytes == n_bytes


def test_no_weight_is_twice_in_memory_while_layers_are_fused(monkeypatch) -> None:
    decoder = LlamaModel(LlamaConfig(**{**SMALL, "num_hidden_layers": 4}))
    given = [weakref.ref(layer.self_attn.q_proj.weight) for layer in decoder.layers]
    alive, fuse = [], layers.FusedLayer

    def counted(layer: nn.Module) -> nn.Module:
        alive.append(sum(weight() is not None for weight in given))
        return fuse(layer)

    monkeypatch.setattr(layers, "FusedLayer", counted)
    Transformer(decoder)
    assert alive == [4, 3, 2, 1]


def test_heads_are_padded_to_a_multiple_of_8() -> None:
    """torch's fused attention refuses 16-bit heads of other sizes (LlamaGen 3B: 100)."""
    with META:
        decoder = LlamaModel(LlamaConfig(**{**SMALL, "head_dim": 100})).to(torch.bfloat16)
    cache = Transformer(decoder).new_cache(2, 16)
    assert cache.kv_layers[0].keys.shape == (2, 2, 16, 104)


@pytest.mark.parametrize("norm", [LlamaRMSNorm, GemmaRMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [7, 64, 1024])
def test_a_norm_is_rounded_once(norm: Any, dtype: torch.dtype, size: int) -> None:
    exact = norm(size, eps=1e-5).double()
    exact.weight.data = torch.randn(size).to(dtype).double()
    theirs = norm(size, eps=1e-5).to(dtype)
    theirs.weight.data = exact.weight.data.to(dtype)
    x = (10 * torch.randn(3, 5, size)).to(dtype)
    ours = with_fused_norms(nn.Sequential(nn.Sequential(theirs)))
    assert isinstance(ours[0][0], RmsNorm)
    torch.testing.assert_close(ours(x), exact(x.double()).to(dtype))


def test_other_norms_stay() -> None:
    norms = [Olmo2RMSNorm(8), nn.LayerNorm(8), nn.RMSNorm(8)]
    assert [type(norm) for norm in with_fused_norms(nn.Sequential(*norms))] == [
        type(norm) for norm in norms
    ]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n_in", "n_out"), SIZES)
def test_packed_products_are_those_of_a_linear_layer(n_in: int, n_out: int, bias: bool) -> None:
    layer = nn.Linear(n_in, n_out, bias=bias).requires_grad_(False)
    x = torch.randn(2, 5, n_in)
    torch.testing.assert_close(packed(layer)(x), layer(x))


@pytest.mark.process
@pytest.mark.parametrize(("n_in", "n_out"), SIZES)
@given(n_rows=st.integers(2, 300), other=st.integers(2, 300))
def test_a_row_has_the_same_bits_whatever_the_number_of_rows(
    n_in: int, n_out: int, n_rows: int, other: int
) -> None:
    layer = packed(nn.Linear(n_in, n_out, bias=False))
    x = torch.randn(max(n_rows, other), n_in)
    fewest = min(n_rows, other)
    assert torch.equal(layer(x[:n_rows])[:fewest], layer(x[:other])[:fewest])
    assert torch.equal(layer(x[-n_rows:])[-fewest:], layer(x[-other:])[-fewest:])


def test_all_linear_layers_within_are_packed_and_counted() -> None:
    part = nn.Sequential(
        nn.Linear(8, 4), nn.LayerNorm(4), nn.ModuleList([nn.Linear(4, 2, bias=False)])
    )
    sizes = [(weight.numel(), weight.nbytes) for weight in part.parameters()]
    assert packed(part) is part
    assert not any(isinstance(child, nn.Linear) for child in part.modules())
    assert [(weight.numel(), weight.nbytes) for weight in part.parameters()] == sizes


@pytest.mark.parametrize(
    "where", [{"device": "meta"}, {"dtype": torch.float64}, {"dtype": torch.float16}]
)
def test_what_onednn_does_not_multiply_is_not_packed(where: dict[str, Any]) -> None:
    layer = nn.Linear(4, 4, **where)
    assert packed(layer) is layer


def test_16_bits_are_packed_where_the_machine_multiplies_them() -> None:
    layer = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    result = packed(layer)
    assert isinstance(result, PackedLinear) == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    torch.testing.assert_close(result(x), layer(x))


def test_cudnn_attention_is_off_on_a_gpu() -> None:
    """It would plan every new shape anew, for 50 to 450 ms."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    with META:
        decoder = DECODERS["llama"]()
    with FakeTensorMode(allow_non_fake_inputs=True):
        Transformer(decoder.to_empty(device="cuda"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
