"""Weights of 8 and 4 bits."""

import json
import typing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from sjdvp.config import ModelConfig, Quantization
from sjdvp.errors import ConfigError
from sjdvp.models import open_model
from sjdvp.models.quantize import _VALUES, QuantizedLinear, quantize
from sjdvp.models.random_weights import open_random_model
from sjdvp.models.shapes import shape_of
from sjdvp.profiles import list_profiles, resolve
from sjdvp.report.load import load_runs
from sjdvp.report.table import make_results
from sjdvp_cli.app import run
from tests.models.harness import CPU

KINDS = typing.get_args(Quantization)
BITS = {"int8": 8, "fp8": 8, "int4": 4.5, "nf4": 4.5}  # a 4-bit scale has 32 bits for 64 weights
ERROR = {"int8": 0.008, "fp8": 0.04, "int4": 0.13, "nf4": 0.11}  # of the norm of a product


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_products(kind: Quantization, has_bias: bool) -> None:
    """The error of a product is that of rounding the weights; concatenation changes nothing."""
    torch.manual_seed(0)
    exact, x = nn.Linear(256, 96, bias=has_bias), torch.randn(3, 5, 256)
    exact.requires_grad_(False)
    exact.weight[7] = 0  # a row without a scale
    layer = QuantizedLinear(kind, *quantize(exact.weight, kind, torch.float32), exact.bias)
    y, wanted = layer(x), exact(x)
    error = ((y - wanted).norm() / wanted.norm()).item()
    print(f"{kind}: error of a product {error:.4f}")
    assert error < ERROR[kind]
    assert layer.n_weights == sum(w.numel() for w in exact.parameters())
    stored = layer.packed.nbytes + layer.scale.nbytes
    assert 8 * stored / exact.weight.numel() == pytest.approx(BITS[kind], abs=0.2)
    both = QuantizedLinear.concatenated([layer, layer])
    assert torch.allclose(both(x), torch.cat([y, y], -1), atol=1e-5)
    assert torch.allclose(layer.bfloat16()(x.bfloat16()).float(), y, atol=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_of_exact_weights_comes_back(kind: Quantization) -> None:
    """Weights that the format can hold are kept to the bit."""
    if kind in _VALUES:
        weight = torch.tensor(_VALUES[kind][-15:]).repeat(5)[:64].clone()[None]
        weight[0, 0] = 1.0
    else:
        weight = torch.tensor([[-127.0, 3.0, 0.0, 64.0] if kind == "int8" else [448.0, -1.5, 0, 7]])
    layer = QuantizedLinear(kind, *quantize(weight, kind, torch.float32), None)
    found = layer(torch.eye(weight.shape[1])).T
    assert torch.allclose(found, weight, rtol=1e-6)


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_the_embedded_model(kind: Quantization) -> None:
    """Only the layers' linear layers shrink; the meta device gives the same bytes."""
    config = ModelConfig(quantize=kind)
    full = open_model(ModelConfig(), CPU, torch.float32)
    model = open_model(config, CPU, torch.float32)
    planned = open_model(config, torch.device("meta"), torch.float32)
    assert planned.n_bytes == model.n_bytes
    assert model.n_weights == full.n_weights
    in_layers = 8 * (4 * 256 * 256 + 3 * 256 * 704)
    saved = full.n_bytes - model.n_bytes
    assert saved / (4 * in_layers) == pytest.approx(1 - BITS[kind] / 32, abs=0.02)


def test_inputs_that_4_bits_do_not_fit() -> None:
    with pytest.raises(
        ConfigError, match="nf4 needs layers with a multiple of 64 inputs, found 100"
    ):
        quantize(torch.zeros(8, 100), "nf4", torch.float32)


@pytest.mark.process
def test_images_and_log_rows(tmp_path: Path) -> None:
    """The same tokens by `ar` and `same-noise`; the log says which weights they are of."""
    tokens = {}
    for decoder in ("ar", "same-noise"):
        out = tmp_path / decoder
        line = ["generate", "--prompt", "a red apple", "-o", str(out), "--seed", "1"]
        assert run([*line, "--decoder", decoder, "--set", "model.quantize=int8", "--quiet"]) == 0
        row = json.loads((out / "log.shard-000-of-001.jsonl").read_text())
        assert (row["quantize"], row["dtype"], row["lossless"]) == ("int8", "float32", True)
        tokens[decoder] = row["token_sha256"]
    assert tokens["ar"] == tokens["same-noise"]
    labels = {result.label for result in make_results(load_runs([tmp_path / d for d in tokens]))}
    assert labels == {"lossless to int8 weights"}


@pytest.mark.process
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_the_arithmetic_of_shapes(kind: Quantization | None) -> None:
    """What `sjdvp profiles` says is what a model of that shape takes, but for its norms."""
    shape = replace(shape_of("emu3.5-image"), n_layers=2, hidden=256, feed_forward=640, n_ids=1)
    config = replace(resolve("emu3.5-image").config, model=ModelConfig("emu3.5", quantize=kind))
    model = open_random_model(shape, config, CPU, torch.bfloat16)
    assert shape.weight_bytes(kind) == pytest.approx(model.n_bytes, rel=0.002)


BIG = [name for name in (profile.name for profile in list_profiles()) if name.endswith("-24gb")]


@pytest.mark.parametrize("name", BIG)
def test_profiles_for_24_gb(name: str) -> None:
    """They are the profiles of every model of 7 B and more, with other weights and that is all."""
    whole, small = (resolve(n).config for n in (name.removesuffix("-24gb"), name))
    assert small.model.quantize
    assert replace(small.model, quantize=None) == whole.model
    assert (small.sampling, small.decoder) == (whole.sampling, whole.decoder)
    assert shape_of(name).weight_bytes(small.model.quantize) < 0.9 * 24 * 2**30


def test_every_large_model_has_one() -> None:
    """But Emu3.5: its weights take 20.8 GB in 4 bits, and with one image more than a card lends."""
    names = {p.name for p in list_profiles() if shape_of(p.name).weight_bytes(None) > 13e9}
    names.remove("emu3.5-image")
    assert {name.removesuffix("-24gb") for name in names} == {n.removesuffix("-24gb") for n in BIG}
    limits = {"int8": 10e9, "int4": 6e9}
    for profile in list_profiles():
        if not profile.name.startswith(("lumina-mgpt-34b", "emu3.5")):
            found = {kind: shape_of(profile.name).weight_bytes(kind) for kind in limits}
            assert all(found[kind] < limits[kind] for kind in limits), profile.name
    assert shape_of("emu3.5-image").weight_bytes("int4") < 24e9


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_layer_makes_no_tensor_of_numbers(kind: Quantization) -> None:
    """It would be copied to the GPU at each step, which a CUDA graph cannot capture."""
    layer = QuantizedLinear(kind, *quantize(torch.randn(96, 64), kind, torch.float32), None)
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    x = torch.randn(2, 64)
    compiled = torch.compile(lambda x: layer(x), backend=keep, fullgraph=True)
    assert torch.equal(compiled(x), layer(x))
    assert torch.tensor not in {node.target for node in graphs[0].graph.nodes}
