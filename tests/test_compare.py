"""Alternating decoders, with fake engines: the order of the images, and the files after it."""

import json
import subprocess
import sys

import pytest

from sjdvp.compare import ComparisonRequest, Variant, compare, plan_variants
from sjdvp.errors import ConfigError, FolderError
from sjdvp.events import ImageFinished, Note, RunFinished, RunStarted, ignore
from sjdvp.report.load import load_runs, require_fair
from sjdvp.report.metrics import same_tokens, speedup
from sjdvp.runs.check import check_folder
from sjdvp.runs.prompts import inline_prompts
from sjdvp.runs.sharding import Selection
from tests.fake_engines import TEXTS, Engines, request, with_settings


def test_decoders_take_turns_and_the_first_changes(tmp_path):
    engines = Engines()
    summary = compare(request(tmp_path), engines.open, ignore)
    warmup, measured = engines.diary[:3], engines.diary[3:]
    assert [name for name, _, _ in warmup] == ["ar", "sjd", "sjdvp"]
    assert all(sample >= 2**20 for _, _, sample in warmup)  # no image of the run is generated twice
    order = [
        ["ar", "sjd", "sjdvp"],
        ["sjd", "sjdvp", "ar"],
        ["sjdvp", "ar", "sjd"],
        ["ar", "sjd", "sjdvp"],
    ]
    assert measured == [(name, turn, 0) for turn, names in enumerate(order) for name in names]
    assert (summary.requested, summary.ok, summary.exit_code, engines.opened) == (12, 12, 0, 1)


def test_each_decoder_has_a_run_folder_like_any_other(tmp_path):
    compare(request(tmp_path), Engines().open, ignore)
    runs = load_runs([tmp_path])
    assert [run.name for run in runs] == ["ar", "sjd", "sjdvp"]
    assert all(check_folder(run.root).whole for run in runs)
    assert [[row["seed"] for row in run.rows.values()] for run in runs][1:] == [
        [r["seed"] for r in runs[0].rows.values()]
    ] * 2
    require_fair(runs)
    ar, sjd, _ = runs
    assert speedup(ar, sjd, "nfe").value > 1
    assert same_tokens(ar, sjd) == 1


def test_the_same_command_again_generates_nothing_and_anew_gives_the_same_nfe(tmp_path):
    first, again, anew = Engines(), Engines(), Engines()
    compare(request(tmp_path / "a"), first.open, ignore)
    compare(request(tmp_path / "a"), again.open, ignore)
    compare(request(tmp_path / "b"), anew.open, ignore)
    assert (again.opened, anew.diary) == (0, first.diary)
    a, b = (
        [[row["nfe"] for row in run.rows.values()] for run in load_runs([tmp_path / name])]
        for name in "ab"
    )
    assert a == b


def test_batches_take_turns(tmp_path):
    engines = Engines()
    compare(request(tmp_path, "ar,sjd", **{"run.batch_size": 3}), engines.open, ignore)
    rows = [(name, row) for name, row, _ in engines.diary[2:]]
    assert rows == [
        ("ar", 0),
        ("ar", 1),
        ("ar", 2),
        ("sjd", 0),
        ("sjd", 1),
        ("sjd", 2),
        ("sjd", 3),
        ("ar", 3),
    ]


def test_a_seed_is_chosen_once_for_all_and_kept(tmp_path):
    asked = request(tmp_path, "ar,sjd", **{"run.seed": None})
    compare(asked, Engines().open, ignore)
    seeds = {run.info.seed for run in load_runs([tmp_path])}
    assert len(seeds) == 1
    compare(request(tmp_path, "ar,sjd,sjdvp", **{"run.seed": None}), Engines().open, ignore)
    assert {run.info.seed for run in load_runs([tmp_path])} == seeds


def test_a_variant_that_joins_later_is_told_apart(tmp_path):
    compare(request(tmp_path, "ar"), Engines().open, ignore)
    heard = []
    compare(request(tmp_path, "ar,sjd"), Engines().open, heard.append)
    assert isinstance(heard[0], RunStarted)
    assert (heard[0].total, heard[0].done) == (8, 4)
    assert [e.message for e in heard if isinstance(e, Note)] == [
        "some decoders have more finished images: not all times were measured alternating"
    ]
    assert len([e for e in heard if isinstance(e, ImageFinished)]) == 4
    assert isinstance(heard[-1], RunFinished)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"sampling.temperature": 0.3}, "sampling.temperature: 0.8 there, 0.3 now"),
        ({"run.seed": 8}, "run.seed: 7 there, 8 now"),
    ],
)
def test_folders_with_other_settings_are_refused(tmp_path, other, message):
    compare(request(tmp_path, "ar"), Engines().open, ignore)
    engines = Engines()
    with pytest.raises(FolderError, match=message):
        compare(request(tmp_path, "sjd,ar", **other), engines.open, ignore)
    assert not engines.opened
    assert not (tmp_path / "sjd").exists()


@pytest.mark.parametrize(
    ("names", "label"),
    [
        ("ar,sjd", "lossless"),
        ("ar,lantern", "all lossless but lantern"),
        ("lantern,gsd", "not lossless"),
    ],
)
def test_the_opening_names_the_decoders_that_are_not_lossless(tmp_path, names, label):
    heard = []
    compare(request(tmp_path, names), Engines().open, heard.append)
    assert (heard[0].decoder, heard[0].lossless) == (
        f"decoders {names.replace(',', ', ')}",
        label,
    )


def test_folders_of_two_seeds_are_refused(tmp_path):
    compare(request(tmp_path, "ar", **{"run.seed": 1}), Engines().open, ignore)
    compare(request(tmp_path, "sjd", **{"run.seed": 2}), Engines().open, ignore)
    with pytest.raises(FolderError, match=r"run\.seed"):
        compare(request(tmp_path, "ar,sjd", **{"run.seed": None}), Engines().open, ignore)


def test_failed_images_are_logged_and_left_out(tmp_path):
    summary = compare(request(tmp_path, "ar,sjd", ("fail", "a plum")), Engines().open, ignore)
    assert (summary.ok, summary.failed, summary.exit_code) == (2, 2, 1)
    ar, sjd = load_runs([tmp_path])
    assert len(ar.failed) == 1
    assert speedup(ar, sjd, "nfe").low is None  # one pair


def test_too_many_failures_stop_it(tmp_path):
    engines = Engines()
    summary = compare(
        request(tmp_path, "ar,sjd", ("fail 1", "fail 2", "a"), **{"run.max_failures": 1}),
        engines.open,
        ignore,
    )
    assert (summary.failed, summary.ok) == (2, 0)


@pytest.mark.parametrize(("variants", "size"), [("", 1), ("ar", "auto")])
def test_what_cannot_be_compared(tmp_path, variants, size):
    config = with_settings({"run.batch_size": size}).config
    asked = ComparisonRequest(
        tuple(Variant(n, config) for n in variants.split()),
        tmp_path,
        inline_prompts(TEXTS),
        Selection(None, None),
    )
    with pytest.raises(ConfigError):
        compare(asked, Engines().open, ignore)


def names(decoders, sweep):
    return [variant.name for variant in plan_variants(decoders.split(","), sweep, with_settings)]


def test_a_sweep_is_a_grid_of_what_matters_to_each_decoder():
    grid = {"window": ["8", "16"], "decoder.prediction.rises": ["2", "3"]}
    assert names("ar,sjd,sjdvp,ar", grid) == [
        "ar",
        *("sjd,window=8", "sjd,window=16"),
        *("sjdvp,window=8,prediction.rises=2", "sjdvp,window=8,prediction.rises=3"),
        *("sjdvp,window=16,prediction.rises=2", "sjdvp,window=16,prediction.rises=3"),
    ]
    variants = plan_variants(["sjdvp"], grid, with_settings)
    assert [
        (variant.config.decoder.window, variant.config.decoder.prediction.rises)
        for variant in variants
    ] == [(8, 2), (8, 3), (16, 2), (16, 3)]


def test_relaxed_decoders_are_multiplied_by_what_their_verifier_reads():
    grid = {"relax.scale": ["1", "2"], "relax.distance": ["3", "4"]}
    assert names("sjd,lantern,gsd", grid) == [
        "sjd",
        *("lantern,relax.scale=1", "lantern,relax.scale=2"),
        *("gsd,relax.distance=3", "gsd,relax.distance=4"),
    ]


def test_a_sweep_of_one_value_sets_it():
    (variant,) = plan_variants(["sjd"], {"window": ["8"]}, with_settings)
    assert (variant.name, variant.config.decoder.window) == ("sjd,window=8", 8)


def test_swept_runs_are_held_against_sjd_of_the_same_window(tmp_path):
    from sjdvp.report.table import make_results

    compare(request(tmp_path, "sjd,sjdvp", sweep={"window": ["8", "16"]}), Engines().open, ignore)
    runs = load_runs([tmp_path])
    lines = {line.name: line for line in make_results(runs)}
    assert (
        lines["sjdvp,window=8"].speedups["sjd"]["nfe"].value == 1
    )  # the fake's NFE depends on the window alone
    assert lines["sjd,window=8"].speedups["sjd"]["nfe"] is None
    assert lines["sjdvp,window=8"].speedups["ar"]["nfe"] is None


@pytest.mark.parametrize("key", ["windw", "sampling.temperature", "preset"])
def test_only_decoder_settings_are_swept(key):
    with pytest.raises(ConfigError, match="unknown key"):
        names("sjd", {key: ["1"]})


@pytest.mark.process
def test_compare_is_light():
    code = "import sys, sjdvp.compare; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"import json; {code}"], capture_output=True, text=True, check=True
    )
    assert "torch" not in json.loads(done.stdout)


def test_weights_are_found_once_and_of_one_revision(tmp_path):
    weights = tmp_path / "models--owner--tiny" / "snapshots" / ("0" * 40)
    weights.mkdir(parents=True)
    given = {"model.backbone": "generic", "model.path": str(weights)}
    compare(request(tmp_path / "out", "ar,sjd", TEXTS[:1], **given), Engines().open, ignore)
    kept = [tmp_path / "out" / name / "run.json" for name in ("ar", "sjd")]
    assert [json.loads(file.read_text())["revision"] for file in kept] == ["0" * 40] * 2
    kept[1].write_text(json.dumps({**json.loads(kept[1].read_text()), "revision": "1" * 40}))
    with pytest.raises(FolderError, match=f"revision {'1' * 40} of the weights, .* has {'0' * 40}"):
        compare(
            request(
                tmp_path / "out", "ar,sjd", TEXTS[:1], **given, **{"run.num_images_per_prompt": 2}
            ),
            Engines().open,
            ignore,
        )
