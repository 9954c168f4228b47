"""`bench` and `auto`: keys and sums, models without weights, stored settings, computed memory."""

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sjdvp.bench import _auto_windows, bench, best, pick_window, remember
from sjdvp.engine.disk_cache import Fastest, load_fastest, save_fastest
from sjdvp.engine.engine import Engine
from sjdvp.engine.memory import free_bytes, kv_cache_bytes, largest_batch, pick_batch_size
from sjdvp.errors import ConfigError
from sjdvp.models.random_weights import open_random_model, tiny
from sjdvp.models.shapes import SHAPES, shape_of
from sjdvp.profiles import list_profiles, resolve
from sjdvp_cli.bench import read_numbers

pytestmark = pytest.mark.process

CPU = torch.device("cpu")
PROMISED = {
    "profile", "batch_size", "window", "step_ms", "forward_ms", "step_over_forward",
    "weights_read_ms", "images_per_s", "device", "dtype", "quantize", "threads",
}  # fmt: skip


def tiny_model(decoder="sjd", window=4):
    config = resolve("emoji", {"decoder.preset": decoder, "decoder.window": str(window)}).config
    return open_random_model(tiny(shape_of("emoji")), config, CPU, torch.float32), config


def test_every_profile_has_a_shape():
    assert all(shape_of(profile.name) in SHAPES.values() for profile in list_profiles({}))
    with pytest.raises(ConfigError, match="unknown"):
        shape_of("unheard-of")


def test_points_add_up():
    model, config = tiny_model()
    points = list(bench(model, config, [1, 2], [2, 4], 5, trained=True))
    assert [(p.batch_size, p.window) for p in points] == [(1, 2), (1, 4), (2, 2), (2, 4)]
    for point in points:
        assert point.step_ms > 0 and point.step_over_forward == pytest.approx(
            point.step_ms / point.forward_ms
        )
        assert point.tokens_per_nfe is not None and 1 <= point.tokens_per_nfe <= point.window
        assert point.roof_ms == max(point.memory_ms, point.arithmetic_ms)
    assert best(points).images_per_s == max(p.images_per_s or 0 for p in points)


def test_the_command_needs_no_weights_and_ends_with_json(sjdvp_line):
    out = sjdvp_line(
        "bench",
        "-p",
        "emoji",
        "--random-weights",
        "tiny",
        "--batch-sizes",
        "1",
        "--windows",
        "4",
        "--steps",
        "5",
    )
    table, last = out.rstrip("\n").split("\n")
    found = json.loads(last)
    assert found.keys() >= PROMISED and found["images_per_s"] is None
    assert table.startswith("1\t4\t")


@pytest.fixture
def sjdvp_line(capsys, monkeypatch, tmp_path):
    from sjdvp_cli.app import run

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def call(*arguments):
        assert run(list(arguments)) == 0
        return capsys.readouterr().out

    return call


def test_numbers_of_a_flag():
    assert read_numbers("--windows", "1, 16") == [1, 16]
    for text in ("", "0", "a", "1,-2", "9999"):
        with pytest.raises(ConfigError, match="--windows"):
            read_numbers("--windows", text)


def test_the_fastest_batch_is_stored_and_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, config = tiny_model()
    assert load_fastest(config, CPU) is None and pick_batch_size(config, model) == 4
    save_fastest(config, CPU, Fastest(config.decoder.width, 7))
    assert pick_batch_size(config, model) == 7
    other = replace(config, decoder=replace(config.decoder, window=5))
    assert pick_batch_size(other, model) == 4
    assert pick_batch_size(replace(config, run=replace(config.run, batch_size=3)), model) == 3


INCOMPLETE = [
    "",
    "{",
    "[]",
    '{"window": 0, "batch_size": 1}',
    '{"window": "8", "batch_size": 1}',
    '{"batch_size": 4}',
]


@pytest.mark.parametrize("text", INCOMPLETE)
def test_an_incomplete_file_counts_as_missing(monkeypatch, tmp_path, text):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _, config = tiny_model()
    save_fastest(config, CPU, Fastest(8, 7))
    (file,) = tmp_path.rglob("fastest-*.json")
    file.write_text(text)
    assert load_fastest(config, CPU) is None


def test_the_window_auto_is_measured_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sjdvp.bench._AUTO_WINDOWS", (2, 4))
    monkeypatch.setattr("sjdvp.bench._AUTO_STEPS", 5)
    model, _ = tiny_model()
    opened = []
    monkeypatch.setattr("sjdvp.bench.load_model", lambda config: opened.append(config) or model)
    config = resolve("emoji", {"decoder.window": "auto", "run.batch_size": "2"}).config
    told = []
    window = pick_window(config, told.append)
    assert window in (2, 4) and len(opened) == 1 and "measuring windows 2, 4" in told[0]
    assert pick_window(config, told.append) == window and len(opened) == 1
    assert told[1:] == [f"window auto: {window}, as measured before on this machine"]


def test_a_gpu_is_also_measured_with_the_window_of_the_published_results():
    assert _auto_windows(CPU) == (8, 16, 32)
    assert _auto_windows(torch.device("cuda")) == (8, 16, 32, 64)


def test_the_fastest_point_is_stored_for_each_question(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, config = tiny_model()
    measured = list(bench(model, config, [1, 4], [2, 4], 5, trained=True))
    speeds = {(1, 2): 1.0, (1, 4): 2.0, (4, 2): 4.0, (4, 4): 3.0}
    points = [
        replace(point, images_per_s=speeds[point.batch_size, point.window]) for point in measured
    ]
    remember(config, CPU, points)
    assert (
        load_fastest(replace(config, decoder=replace(config.decoder, window="auto")), CPU) is None
    )  # 2 and 4 are not all there is
    monkeypatch.setattr("sjdvp.bench._AUTO_WINDOWS", (2, 4))
    remember(config, CPU, points)

    def asked(window, batch_size):
        decoder, run = (
            replace(config.decoder, window=window),
            replace(config.run, batch_size=batch_size),
        )
        return load_fastest(replace(config, decoder=decoder, run=run), CPU)

    assert asked("auto", "auto") == Fastest(2, 4)
    assert asked("auto", 1) == Fastest(4, 1) and asked("auto", 4) == Fastest(2, 4)
    assert asked(2, "auto") == Fastest(2, 4) and asked(4, "auto") == Fastest(4, 4)
    assert asked(2, 4) is None


@pytest.mark.parametrize("decoder", ["ar", "coupled-vp"])
def test_memory_is_computed_as_it_is_allocated(decoder):
    model, config = tiny_model(decoder, 1 if decoder == "ar" else 4)
    engine = Engine(model, config, 1)
    allocated = sum(
        layer.keys.nbytes + layer.values.nbytes for layer in engine.runner._cache.kv_layers
    )
    assert kv_cache_bytes(model, config) <= allocated <= 1.02 * kv_cache_bytes(model, config)
    assert largest_batch(model, config) > 1


def test_one_engine_is_alive_at_a_time(monkeypatch):
    """Only the engine that is measured may be alive, though it and its step refer to each other."""
    alive = weakref.WeakSet()

    class Counted(Engine):
        def __init__(self, *args):
            super().__init__(*args)
            alive.add(self)
            most.append(len(alive))

    most = []
    monkeypatch.setattr("sjdvp.bench.Engine", Counted)
    model, config = tiny_model()
    gc.disable()
    try:
        list(bench(model, config, [1, 2], [2, 4], 2, trained=True))
    finally:
        gc.enable()
    assert most == [1, 1, 1, 1]


def test_points_that_do_not_fit_are_left_out(monkeypatch):
    model, config = tiny_model()
    monkeypatch.setattr(
        "sjdvp.bench.largest_batch", lambda model, config: 8 // config.decoder.width
    )
    points = bench(model, config, [1, 2, 4], [2, 4], 2, trained=True)
    assert [(p.batch_size, p.window) for p in points] == [(1, 2), (1, 4), (2, 2), (2, 4), (4, 2)]


def test_free_memory_includes_cached_files():
    said = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert free_bytes(CPU) == pytest.approx(1024 * int(said["MemAvailable"].split()[0]), rel=0.1)
