"""Columns of a row are used, or refused by name, or carried with --ignore-columns."""

import io
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sjdvp.config import ModelConfig, RunConfig, RunSettings, SamplingConfig
from sjdvp.errors import ConfigError, FolderError, Interrupted, PromptError
from sjdvp.events import ignore
from sjdvp.generate import Request, generate
from sjdvp.jobs import Job
from sjdvp.runs.check import check_folder
from sjdvp.runs.export import export_folder
from sjdvp.runs.prompts import ReadOptions, read_prompts
from sjdvp.runs.prompts.asked import check_one_engine, read_asked
from sjdvp.runs.writer import read_metadata
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


MIXED = [
    {"prompt": "a", "size": "32x16", "seed": 1},
    {"prompt": "a", "cfg_scale": 7.5, "seed": 2},
    {"prompt": "a", "width": 32, "height": "16", "cfg_scale": "1", "seed": 3},
    {"prompt": "a", "negative_prompt": "blurry", "cfg_scale": 2, "seed": 4},
    {"prompt": "a", "height": 40, "seed": 5},
]


def test_jobs_have_what_rows_ask_for_those_of_a_size_together(tmp_path):
    generator = FakeGenerator(batch=1)
    request = Request(CONFIG, tmp_path / "out", prompts=write(tmp_path, MIXED))
    generate(request, generator.open, ignore)
    assert generator.generated == [
        Job(1, 0, 2, "a", cfg_scale=7.5),
        Job(3, 0, 4, "a", cfg_scale=2.0, negative_prompt="blurry"),
        Job(0, 0, 1, "a", size=(32, 16)),
        Job(2, 0, 3, "a", cfg_scale=1.0, size=(32, 16)),
        Job(4, 0, 5, "a", size=(40, 40)),
    ]


def test_log_and_image_say_what_was_used(tmp_path):
    run(tmp_path, MIXED)
    found = rows(tmp_path)
    used = [(found[i, 0]["params"]["cfg_scale"], found[i, 0]["asked"]) for i in range(5)]
    assert [scale for scale, _ in used] == [1.0, 7.5, 1.0, 2.0, 1.0]
    assert used[2][1] == {"width": 32, "height": 16, "cfg_scale": 1.0, "seed": 3}
    assert found[3, 0]["params"]["negative_prompt"] == "blurry"
    stored = [read_metadata(tmp_path / f"out/images/00000{i}.png") for i in range(5)]
    assert stored[0]["sjdvp"]["model_settings"] == {"width": 32, "height": 16}
    assert stored[3]["parameters"].startswith("a\nNegative prompt: blurry\nSteps: ")
    assert "CFG scale: 7.5" in stored[1]["parameters"]


def test_a_killed_run_with_these_columns_is_resumed(tmp_path):
    class KilledGenerator(FakeGenerator):
        def generate(self, source):
            yield from itertools.islice(super().generate(source), 2)
            raise KeyboardInterrupt

    request = Request(CONFIG, tmp_path / "out", prompts=write(tmp_path, MIXED))
    with pytest.raises(Interrupted):
        generate(request, KilledGenerator(batch=1).open, ignore)
    rest = FakeGenerator(batch=1)
    generate(request, rest.open, ignore)
    assert [job.index for job in rest.generated] == [0, 2, 4]
    assert check_folder(tmp_path / "out").whole


def test_updated_columns_are_generated_again(tmp_path):
    run(tmp_path, MIXED)
    changed = [*MIXED[:1], MIXED[1] | {"cfg_scale": 3}, *MIXED[2:]]
    with pytest.raises(FolderError, match="row 1 of the prompts has changed"):
        run(tmp_path, changed)
    assert run(tmp_path, changed, updates=((1, 1),)).ok == 1
    assert rows(tmp_path)[1, 0]["params"]["cfg_scale"] == 3
    renamed = [*changed[:4], MIXED[4] | {"filename": "x.png"}]
    assert run(tmp_path, renamed, updates=((4, 4),)).ok == 0


def test_a_negative_prompt_that_the_model_cannot_use_is_refused_by_name(tmp_path):
    records = [{"prompt": "x"}, {"prompt": "a", "negative_prompt": "blurry"}]
    for config, reason in (
        (RunConfig(model=ModelConfig("janus")), "janus models take no negative prompt"),
        (CONFIG, "it does nothing at CFG scale 1"),
    ):
        request = Request(config, tmp_path / "out", prompts=write(tmp_path, records))
        with pytest.raises(PromptError, match=f"row 1, column 'negative_prompt': {reason}"):
            generate(request, FakeGenerator().open, ignore)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wish", [{"width": 99}, {"size": "99x99"}, {"height": 99, "width": ""}, {"size": 99}]
)
def test_a_size_that_the_model_does_not_have_is_refused_by_name(tmp_path, wish):
    asked = []

    def check_model(config):
        asked.append((config.model.width, config.model.height))
        if config.model.width == 99:
            raise ConfigError("no images of 99x99 pixels", key="model.width")

    records = [{"prompt": "x", "size": 16}, {"prompt": "y", "size": 16}, {"prompt": "a", **wish}]
    request = Request(CONFIG, tmp_path / "out", prompts=write(tmp_path, records))
    with pytest.raises(PromptError) as caught:
        generate(request, FakeGenerator().open, ignore, check_model=check_model)
    (column,) = (name for name, value in wish.items() if value)
    assert str(caught.value) == f"row 2, column {column!r}: no images of 99x99 pixels"
    assert asked == [(16, 16), (99, 99)]
    assert not (tmp_path / "out").exists()


def test_one_engine_refuses_what_needs_another(tmp_path):
    off, on = RunConfig(), RunConfig(sampling=SamplingConfig(2.0))
    records = [{"prompt": "x", "cfg_scale": 1}, {"prompt": "a", "cfg_scale": 7.5}]
    prompts = read_prompts(write(tmp_path, records)).prompts
    check_one_engine(prompts, on)
    with pytest.raises(PromptError, match="row 1, column 'cfg_scale'") as caught:
        check_one_engine(prompts, off)
    assert "--cfg-scale 7.5 sets it" in caught.value.hint
    sized = read_prompts(write(tmp_path, [{"prompt": "a", "size": "512x256"}])).prompts
    with pytest.raises(PromptError, match="row 0, column 'size'"):
        check_one_engine(sized, on)
    same = RunConfig(model=ModelConfig(width=512, height=256))
    check_one_engine(sized, same)


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
    lines = b'{"prompt": "a", "n": 2}\n{"prompt": "b", "negative_prompt": "c"}\n'
    request = Request(
        CONFIG, tmp_path / "out", stdin=io.BytesIO(lines), reading=ReadOptions(format="jsonl")
    )
    with pytest.raises(PromptError, match="column 'negative_prompt'"):
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
