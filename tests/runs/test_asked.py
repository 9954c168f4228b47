"""Columns of a row are used, or refused by name, or carried with --ignore-columns."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sjdvp.config import ModelConfig, RunConfig, RunSettings, SamplingConfig
from sjdvp.errors import FolderError, PromptError
from sjdvp.events import ignore
from sjdvp.generate import Request, generate
from sjdvp.runs.check import check_folder
from sjdvp.runs.export import export_folder
from sjdvp.runs.prompts import ReadOptions, read_prompts
from sjdvp.runs.prompts.asked import check_asked, read_asked
from tests.fake_generator import FakeGenerator

CONFIG = RunConfig(run=RunSettings(seed=1))


def write(folder: Path, records: list[dict]) -> Path:
    file = folder / "p.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def run(folder: Path, records: list[dict], **more):
    request = Request(CONFIG, folder / "out", prompts=write(folder, records), **more)
    return generate(request, FakeGenerator().open, ignore)


def rows(folder: Path) -> dict[tuple[int, int], dict]:
    (log,) = (folder / "out").glob("log.*")
    found = map(json.loads, log.read_text().splitlines())
    return {(row["index"], row["sample"]): row for row in found}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out" / "images").iterdir())


def test_seed_is_the_seed_of_the_image_and_n_its_number(tmp_path):
    records = [
        {"prompt": "a red apple", "seed": 42, "n": 2},
        {"prompt": "a red apple", "seed": 42, "n": 1},
        {"prompt": "a dog"},
    ]
    assert run(tmp_path, records).ok == 4
    found = rows(tmp_path)
    assert names(tmp_path) == ["000000_00.png", "000000_01.png", "000001.png", "000002.png"]
    assert found[0, 0]["seed"] == found[1, 0]["seed"] == 42
    assert found[0, 0]["image_sha256"] != found[0, 1]["image_sha256"]
    images = tmp_path / "out/images"
    assert found[0, 1]["seed"] not in (42, found[2, 0]["seed"])
    assert (images / "000000_00.png").stat().st_size
    assert check_folder(tmp_path / "out").whole
    assert (run(tmp_path, records).ok, check_folder(tmp_path / "out").expected) == (0, 4)


def test_ignored_columns_are_carried(tmp_path):
    records = [{"prompt": "a", "seed": 42, "n": 2, "negative_prompt": "b", "filename": "x.png"}]
    reading = ReadOptions(ignore_columns=True)
    assert run(tmp_path, records, reading=reading).ok == 1
    assert rows(tmp_path)[0, 0]["seed"] != 42
    (line,) = (tmp_path / "out/prompts.jsonl").read_text().splitlines()
    assert json.loads(line)["extra"] == {key: records[0][key] for key in list(records[0])[1:]}
    export_folder(tmp_path / "out", tmp_path / "t", "flat")
    assert (tmp_path / "t/000000.png").exists()


def test_another_seed_in_a_row_is_a_changed_row(tmp_path):
    run(tmp_path, [{"prompt": "a", "seed": 1}])
    with pytest.raises(FolderError, match="has changed"):
        run(tmp_path, [{"prompt": "a", "seed": 2}])


@pytest.mark.parametrize(
    ("column", "value", "hint"),
    [
        ("negative_prompt", "blurry", "--ignore-columns"),
        ("cfg_scale", 7.5, "--cfg-scale 7.5 sets it"),
        ("width", 512, "--size 512x512 sets it"),
        ("size", "512x256", "--size 512x256 sets it"),
        ("height", "300", "--size 300x300 sets it"),
    ],
)
def test_what_the_run_cannot_give_is_refused_by_name(tmp_path, column, value, hint):
    with pytest.raises(PromptError) as caught:
        run(tmp_path, [{"prompt": "x"}, {"prompt": "a", column: value}])
    named = "width" if column == "size" else column
    assert f"row 1, column {named!r}" in str(caught.value)
    assert hint in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_what_the_run_has_anyway_is_no_mistake(tmp_path):
    config = RunConfig(model=ModelConfig(width=512, height=256), sampling=SamplingConfig(3.0))
    record = {"prompt": "a", "size": "512x256", "cfg_scale": "3", "negative_prompt": " ", "n": None}
    check_asked(read_prompts(write(tmp_path, [record])).prompts, config)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("seed", -1),
        ("seed", 2**53),
        ("seed", 1.5),
        ("seed", True),
        ("seed", "x"),
        ("n", 0),
        ("n", [1]),
        ("size", "big"),
        ("size", "12x"),
        ("width", 0),
        ("cfg_scale", "nan"),
        ("cfg_scale", -1),
        ("negative_prompt", 3),
        ("filename", {}),
    ],
)
def test_a_value_that_cannot_be_meant_names_column_and_line(tmp_path, column, value):
    with pytest.raises(PromptError) as caught:
        read_prompts(write(tmp_path, [{"prompt": "x"}, {"prompt": "a", column: value}]))
    assert f"column {column!r} must be" in str(caught.value)
    assert "line 2" in str(caught.value)


@given(st.dictionaries(st.sampled_from(["seed", "n", "size", "cfg_scale"]), st.text(max_size=9)))
def test_any_text_is_read_or_refused(columns):
    try:
        asked = read_asked(columns)
    except ValueError as error:
        assert "must be" in str(error)
    else:
        json.dumps(asked, allow_nan=False)


def test_a_pipe_is_checked_row_by_row(tmp_path):
    lines = b'{"prompt": "a", "n": 2}\n{"prompt": "b", "cfg_scale": 9}\n'
    request = Request(
        CONFIG, tmp_path / "out", stdin=io.BytesIO(lines), reading=ReadOptions(format="jsonl")
    )
    with pytest.raises(PromptError, match="column 'cfg_scale'"):
        generate(request, FakeGenerator().open, ignore)
    assert names(tmp_path) == ["000000_00.png", "000000_01.png"]


def test_tables_ask_too(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text("prompt,seed,n,filename\na,7,2,hero.png\nb,,,\n")
    first, second = read_prompts(file).prompts
    assert first.asked == {"seed": 7, "n": 2, "filename": "hero.png"}
    assert second.asked == {}


def test_overwrite_generates_all_images_of_a_row_again(tmp_path):
    records = [{"prompt": "a", "n": 3}]
    run(tmp_path, records)
    assert run(tmp_path, records, overwrite=True).ok == 3
