"""Packed layers: the same products, rows that do not notice each other, and nothing packed that cannot be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sjdvp.models.packed import PackedLinear, packed

SIZES = [(256, 704), (704, 256), (256, 1024), (32, 96), (33, 7)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n_in", "n_out"), SIZES)
def test_the_products_are_those_of_a_linear_layer(n_in, n_out, bias):
    layer = nn.Linear(n_in, n_out, bias=bias).requires_grad_(False)
    x = torch.randn(2, 5, n_in)
    torch.testing.assert_close(packed(layer)(x), layer(x))


@pytest.mark.parametrize(("n_in", "n_out"), SIZES)
@given(n_sequences=st.integers(2, 300), other=st.integers(2, 300))
def test_a_row_has_the_same_bits_in_any_company(n_in, n_out, n_sequences, other):
    layer = packed(nn.Linear(n_in, n_out, bias=False))
    x = torch.randn(max(n_sequences, other), n_in)
    fewest = min(n_sequences, other)
    assert torch.equal(layer(x[:n_sequences])[:fewest], layer(x[:other])[:fewest])
    assert torch.equal(layer(x[-n_sequences:])[-fewest:], layer(x[-other:])[-fewest:])


def test_all_linear_layers_within_are_replaced_and_counted():
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
def test_what_one_dnn_does_not_multiply_stays(where):
    layer = nn.Linear(4, 4, **where)
    assert packed(layer) is layer


def test_16_bits_are_packed_where_the_machine_multiplies_them():
    layer = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    result = packed(layer)
    assert isinstance(result, PackedLinear) == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    torch.testing.assert_close(result(x), layer(x))
