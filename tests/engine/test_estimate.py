"""What is expected on a GPU that is not here: counted operations, pure arithmetic, memory."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from sjdvp.decode.step import decode_step
from sjdvp.engine import estimate, memory
from sjdvp.engine.engine import Engine
from sjdvp.engine.estimate import CARDS, Machine, Work, counted, estimate_on, widest_window
from sjdvp.models.random_weights import open_random_model, tiny
from sjdvp.models.shapes import SHAPES, shape_of
from sjdvp.profiles import list_profiles, resolve
from sjdvp_cli.app import run

META = torch.device("meta")


def config(profile="lumina-mgpt-7b-768", **changes):
    return resolve(profile, changes).config


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(estimate, "shape_of", lambda profile: tiny(shape_of(profile)))


def test_an_operation_starts_and_then_waits_for_memory_or_arithmetic():
    machine = Machine(bytes_per_s=100, flops_per_s=1000, launch_s=1)
    assert machine.seconds(Work([(200, 0), (100, 5000), (0, 0)])) == 3 + 2 + 5


@pytest.mark.parametrize(
    ("n_sequences", "itemsize", "window"),
    [(1, 2, 64), (4, 2, 64), (8, 2, 32), (32, 2, 8), (9, 2, 16), (8, 4, 64), (999, 2, 1)],
)
def test_the_widest_window_that_costs_no_more_than_the_weights(n_sequences, itemsize, window):
    """256 operations a byte: in 16 bits, as many tokens take as long as reading the weights."""
    assert widest_window(Machine(1e12, 256e12, 0), n_sequences, itemsize) == window


def test_bytes_and_flops_of_operations():
    x, table = torch.empty(4, 8, device=META), torch.empty(1000, 8, device=META)
    index = torch.zeros(3, dtype=torch.int64, device=META)
    with counted() as work:
        torch.mm(x, table.T)  # the transposed view is free
        table[index]
        x.expand(2, 4, 8).reshape(8, 8)
    product, rows, copy = work.operations
    assert product == (4 * (32 + 8000 + 4000), 2 * 4 * 8 * 1000)
    assert rows == (2 * 4 * 3 * 8, 0)  # not the whole table
    assert copy == (4 * (32 + 64), 0)  # the expanded dimension is read once


def test_attention_is_one_operation():
    q, keys = torch.empty(1, 2, 3, 8, device=META), torch.empty(1, 2, 16, 8, device=META)
    bias = torch.empty(1, 1, 3, 16, device=META)
    with counted() as work:
        assert scaled_dot_product_attention(q, keys, keys, attn_mask=bias).shape == q.shape
    assert work.operations == [(4 * (2 * 48 + 2 * 256 + 48), 4 * 48 * 16)]


@pytest.mark.process
def test_an_estimate(small):
    found = estimate_on(config(), CARDS["80GB"])
    assert found.fits and found.batch_size == 16 and found.window == 32
    assert found.step_s[0] < found.step_s[1]
    assert found.weights_read_s < found.step_s[0]
    assert found.plan.pixels > 5e8
    assert 400 > found.n_operations > 100


@pytest.mark.process
def test_a_card_that_is_too_small(small):
    card = replace(CARDS["24GB"], memory=2 * 10**8)
    assert not estimate_on(config(), card).fits  # the pixels alone take 0.9 GB


@pytest.mark.slow
@pytest.mark.parametrize("profile", [profile.name for profile in list_profiles({})])
def test_every_profile_is_estimated(small, profile):
    assert estimate_on(config(profile), CARDS["80GB"]).fits


def test_pixels_in_full_shape_are_counted():
    """Emu3 at 720x720: 5.4 GB, which a card of 24 GB has not left beside 8 B weights."""
    shape = replace(shape_of("emu3-gen"), n_layers=1)
    model = open_random_model(shape, config("emu3-gen"), META, torch.bfloat16)
    assert 5e9 < memory.pixel_bytes(model) < 7e9
    with_vq = {name for name, shape in SHAPES.items() if shape.vq}
    assert {*SHAPES} - with_vq == {"emoji", "emu3.5-image*", "glm-image*"}  # sizes not known


@pytest.mark.parametrize("decoder", ["ar", "sjd", "best", "same-noise-vp", "lantern", "gsd"])
def test_the_memory_of_a_step_is_what_it_holds(model, decoder):
    plain = config("emoji", **{"decoder.preset": decoder, "decoder.window": "4"})
    engine = Engine(model, plain, 1)
    logits_1WV = torch.zeros(1, engine.decoder.window, model.layout.vocab_size)
    with torch.no_grad(), memory._LiveBytes() as live:
        decode_step(engine.decoder, engine.state, logits_1WV)
    step, state = memory.decoding_bytes(model, plain)
    assert step == pytest.approx(live.most, rel=0.05)
    assert state == sum(tensor.nbytes for tensor in engine.state.tensors())


@pytest.mark.process
def test_doctor_shows_a_card(small, capsys):
    assert run(["doctor", "--card", "24GB", "-p", "lumina-mgpt-7b-768", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ready"] == "yes" and found["expected step"].endswith("ms (counted, not measured)")


@pytest.mark.process
def test_doctor_says_what_does_not_fit(small, capsys, monkeypatch):
    monkeypatch.setitem(CARDS, "24GB", replace(CARDS["24GB"], memory=2 * 10**8))
    assert run(["doctor", "--card", "24GB", "-p", "lumina-mgpt-7b-768"]) == 2
    assert "does not fit into 190.7 MiB" in capsys.readouterr().out
