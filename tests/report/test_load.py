"""Which folders are read, what they are called, and whether they may be compared."""

import json

import pytest

from sjdvp.errors import FolderError
from sjdvp.report.load import load_runs, require_fair, unfair
from sjdvp.runs.sharding import Shard, log_path
from tests.report.synthetic import make_run


def test_a_folder_of_runs_is_read_in_the_order_of_the_presets(tmp_path):
    for name in ("sjdvp", "ar", "sjd"):
        make_run(tmp_path / name, name, 2)
    (tmp_path / "notes").mkdir()
    assert [run.name for run in load_runs([tmp_path])] == ["ar", "sjd", "sjdvp"]
    assert len(load_runs([tmp_path, tmp_path / "ar"])) == 3  # one folder, once


def test_names_tell_runs_apart(tmp_path):
    for folder in ("x/one", "x/two", "y/two"):
        make_run(tmp_path / folder, "sjd", 2)
    assert [run.name for run in load_runs([tmp_path / "x"])] == ["one", "two"]
    assert [run.name for run in load_runs([tmp_path / "x", tmp_path / "y"])] == [
        "x/one",
        "x/two",
        "y/two",
    ]


def test_no_run_folder(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FolderError, match="not a run folder"):
            load_runs([path])


def test_the_last_attempt_counts(tmp_path):
    make_run(tmp_path, "sjd", 3, failed=(1,))
    log = log_path(tmp_path, Shard())
    again = json.loads(log.read_text().splitlines()[1]) | {
        "attempt": 2,
        "status": "ok",
        "error": None,
        "nfe": 5,
    }
    with log.open("a") as file:
        file.write(json.dumps(again) + "\n")
        file.write('{"torn')
    (run,) = load_runs([tmp_path])
    assert list(run.rows) == [(0, 0), (1, 0), (2, 0)]
    assert (run.rows[1, 0]["nfe"], len(run.failed)) == (5, 0)
    assert run.extras[1] == {"Category": "Food & Beverage", "Challenge": "C1"}


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"settings": {"sampling.temperature": 0.5}}, "sampling.temperature is 0.5, not"),
        ({"settings": {"sampling.cfg_scale": 4.0}}, "sampling.cfg_scale is 4.0, not 1.2"),
        ({"settings": {"model.dtype": "fp16"}}, "model.dtype is 'fp16', not 'auto'"),
        ({"seed": 2}, "the run seed is 2, not 1"),
        ({"texts": {2: "another\x1b"}}, r"prompt row 2 is another prompt, 'another\\x1b'"),
        ({"stats": {"device": "cuda"}}, "device is cuda, not cpu"),
        ({"stats": {"batch_size": 4}}, "batch_size is 4, not 1"),
    ],
)
def test_runs_that_differ_in_more_than_the_decoder(tmp_path, other, word):
    runs = load_runs(
        [make_run(tmp_path / "a", "ar", 3), make_run(tmp_path / "b", "sjd", 3, **other)]
    )
    with pytest.raises(FolderError, match="in more than the decoder") as caught:
        require_fair(runs)
    assert f"sjd: {word}" in str(caught.value)
    assert len(unfair(runs)) == 1


def test_greedy_decoding_is_another_probs_but_the_decoder_means_it(tmp_path):
    names = ("jacobi", "ar", "sjd")
    runs = load_runs([make_run(tmp_path / name, name, 3) for name in names])
    assert unfair(runs) == []
    assert [run.greedy for run in runs] == [True, False, False]
