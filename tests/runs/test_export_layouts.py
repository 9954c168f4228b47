"""Exports pair every image with its own prompt: layouts, texts of benchmarks, earlier exports."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from sjdvp.config import RunConfig, RunSettings
from sjdvp.errors import FolderError
from sjdvp.events import ignore
from sjdvp.generate import Request, generate
from sjdvp.runs.export import export_folder
from sjdvp.runs.prompts import ReadOptions
from sjdvp.runs.sharding import Ranges, Selection
from tests.fake_generator import FakeGenerator

REWRITTEN = [
    {
        "tag": "counting",
        "include": [{"class": "car", "count": 2}],
        "prompt": "a photo of two cars",
        "detailed_caption": "Two small cars side by side.",
        "index": 80,
    },
    {"tag": "x", "include": [], "prompt": "a dog", "detailed_caption": "A brown dog.", "index": 81},
]


def run(
    folder: Path,
    records: list[dict],
    *,
    n: int = 1,
    column: str | None = None,
    seed: int = 1,
    only: Ranges | None = None,
) -> Path:
    """Generate images for records; returns the run folder."""
    prompts = folder.with_suffix(".jsonl")
    prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = RunConfig(run=RunSettings(seed=seed, num_images_per_prompt=n))
    columns = (column,) if column else ()
    request = Request(
        config,
        folder,
        prompts=(prompts,),
        reading=ReadOptions(columns=columns),
        selection=Selection(only),
    )
    generate(request, FakeGenerator().open, ignore)
    return folder


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_geneval_gets_its_own_line_where_another_column_was_used(tmp_path):
    out = run(tmp_path / "out", REWRITTEN, column="detailed_caption")
    export_folder(out, tmp_path / "g", "geneval")
    for i, record in enumerate(REWRITTEN):
        assert json.loads((tmp_path / f"g/{i:05d}/metadata.jsonl").read_text()) == record


def test_t2i_compbench_names_images_by_the_benchmarks_own_prompt(tmp_path):
    out = run(tmp_path / "out", REWRITTEN, column="detailed_caption")
    export_folder(out, tmp_path / "t", "t2i-compbench")
    assert tree(tmp_path / "t") == [
        "samples/a dog_000001.png",
        "samples/a photo of two cars_000000.png",
    ]


@pytest.mark.parametrize("text", ["a/b toy", "a_snake_case label", "..hidden", "x" * 201, "a\\b"])
def test_t2i_compbench_leaves_out_and_names_what_a_file_name_cannot_hold(tmp_path, text):
    out = run(tmp_path / "out", [{"prompt": "café piñata"}, {"prompt": text}])
    report = export_folder(out, tmp_path / "t", "t2i-compbench")
    assert tree(tmp_path / "t") == ["samples/café piñata_000000.png"]
    assert report.left_out == ("row 1: a file name cannot hold its prompt",)


RECORDS = [
    {
        "prompt": "a cat",
        "id": "7",
        "category": "animals",
        "prompt_id": 12,
        "type": "2d",
        "n_words": 2,
    },
    {"prompt": "a dog", "id": "9", "category": "food/x", "prompt_id": 13, "type": "2d"},
]
LAYOUTS = {
    "wise": ["12.png", "13.png"],
    "mjhq": ["animals/7.png", "food x/9.png"],
    "genai-bench": ["emoji/00007.jpeg", "emoji/00009.jpeg"],
    "captions": ["000000.png", "000000.txt", "000001.png", "000001.txt"],
    "imagefolder": ["000000.png", "000001.png", "metadata.jsonl"],
    "webdataset": ["00000.tar"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_name_images(tmp_path, layout):
    out = run(tmp_path / "out", RECORDS)
    report = export_folder(out, tmp_path / "t", layout)
    assert (report.written, report.left_out) == (2, ())
    assert tree(tmp_path / "t") == LAYOUTS[layout]
    assert export_folder(out, tmp_path / "t", layout) == report  # again: nothing to do
    assert tree(tmp_path / "t") == LAYOUTS[layout]


@pytest.mark.parametrize("used", ["short_description", "long_description"])
def test_tiif_numbers_within_the_type_and_names_the_description(tmp_path, used):
    records = [
        {"type": kind, "short_description": f"s{i}", "long_description": f"l{i}"}
        for i, kind in enumerate(["2d", "shape+color", "2d"])
    ]
    out = run(tmp_path / "out", records, column=used)
    export_folder(out, tmp_path / "t", "tiif")
    assert tree(tmp_path / "t") == [
        f"2d/emoji/{used}/0.png",
        f"2d/emoji/{used}/1.png",
        f"shape+color/emoji/{used}/0.png",
    ]
    assert (tmp_path / f"t/2d/emoji/{used}/1.png").samefile(out / "images/000002.png")


@pytest.mark.parametrize("layout", ["tiif", "hpsv2"])
def test_numbers_within_a_type_count_the_prompts_that_were_not_generated(tmp_path, layout):
    records = [
        {"type": "2d", "style": "2d", "short_description": f"s{i}", "long_description": ""}
        for i in range(4)
    ]
    out = run(tmp_path / "out", records, column="short_description", only=((2, 3),))
    export_folder(out, tmp_path / "t", layout)
    names = {"tiif": "2d/emoji/short_description/{}.png", "hpsv2": "2d/{:05d}.jpg"}
    assert tree(tmp_path / "t") == [names[layout].format(number) for number in (2, 3)]


@pytest.mark.parametrize("layout", ["wise", "tiif", "mjhq"])
def test_rows_without_the_columns_of_a_benchmark_are_left_out_and_told(tmp_path, layout):
    out = run(tmp_path / "out", [{"prompt": "a cat"}])
    report = export_folder(out, tmp_path / "t", layout)
    assert report.written == 0
    assert len(report.left_out) == 1


def test_captions_hold_the_prompts(tmp_path):
    out = run(tmp_path / "out", RECORDS, n=2)
    export_folder(out, tmp_path / "t", "captions")
    assert len(tree(tmp_path / "t")) == 8
    assert (tmp_path / "t/000001_01.txt").read_text() == "a dog"
    assert (tmp_path / "t/000001_01.png").samefile(out / "images/000001_01.png")


def test_imagefolder_carries_the_columns(tmp_path):
    out = run(tmp_path / "out", RECORDS)
    export_folder(out, tmp_path / "t", "imagefolder")
    first, second = map(json.loads, (tmp_path / "t/metadata.jsonl").read_text().splitlines())
    assert first == {
        **{"category": "animals", "prompt_id": 12, "type": "2d", "n_words": 2},
        **{"file_name": "000000.png", "text": "a cat", "index": 0, "id": "7"},
    }
    assert second["n_words"] is None  # a loader wants the same columns in each line


def test_webdataset_holds_image_text_and_columns_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr("sjdvp.runs.evaluators._TAR_IMAGES", 2)
    out = run(tmp_path / "out", [*RECORDS, {"prompt": "a bird"}])
    assert export_folder(out, tmp_path / "t", "webdataset").written == 3
    assert tree(tmp_path / "t") == ["00000.tar", "00001.tar"]
    with tarfile.open(tmp_path / "t/00000.tar") as tar:
        names = [member.name for member in tar]
        data = {name: tar.extractfile(name).read() for name in names}
    assert names == [f"00000{i}.{suffix}" for i in (0, 1) for suffix in ("png", "txt", "json")]
    assert data["000001.png"] == (out / "images/000001.png").read_bytes()
    assert Image.open(io.BytesIO(data["000001.png"])).size
    assert data["000001.txt"] == b"a dog"
    assert json.loads(data["000001.json"])["category"] == "food/x"


def test_a_file_name_of_the_prompt_file_names_the_image(tmp_path):
    records = [{"prompt": "a", "filename": "hero_apple.png"}, {"prompt": "b", "filename": "../x.y"}]
    export_folder(run(tmp_path / "out", records), tmp_path / "t", "flat")
    assert tree(tmp_path / "t") == ["hero_apple.png", "x.y.png"]
    export_folder(run(tmp_path / "two", records, n=2), tmp_path / "u", "captions")
    assert "hero_apple_01.txt" in tree(tmp_path / "u")


def test_file_names_that_two_rows_share_are_refused(tmp_path):
    out = run(tmp_path / "out", [{"prompt": p, "filename": "a.png"} for p in "xy"])
    with pytest.raises(FolderError, match=r"rows 0 and 1 would both be a\.png"):
        export_folder(out, tmp_path / "t", "flat")


EARLIER = [{"prompt": f"prompt {i}"} for i in range(3)]


@pytest.mark.parametrize("layout", ["flat", "geneval", "t2i-compbench", "captions", "imagefolder"])
def test_an_earlier_export_of_other_names_is_refused_or_replaced(tmp_path, layout):
    target = tmp_path / "t"
    export_folder(run(tmp_path / "old", EARLIER), target, layout)
    (target / "results.json").write_text("{}")
    before = {name: (target / name).read_bytes() for name in tree(target)}
    out = run(tmp_path / "new", RECORDS)
    with pytest.raises(FolderError, match="of another export") as caught:
        export_folder(out, target, layout)
    assert "--overwrite" in caught.value.hint
    assert {name: (target / name).read_bytes() for name in tree(target)} == before
    export_folder(out, target, layout, overwrite=True)
    assert (target / "results.json").read_text() == "{}"
    (target / "results.json").unlink()
    export_folder(out, tmp_path / "fresh", layout)
    assert tree(target) == tree(tmp_path / "fresh")
    for name in tree(target):
        assert (target / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()


@pytest.mark.parametrize("layout", ["flat", "webdataset"])
def test_other_images_under_the_same_names_are_refused_or_replaced(tmp_path, layout):
    target = tmp_path / "t"
    export_folder(run(tmp_path / "old", RECORDS), target, layout)
    out = run(tmp_path / "new", RECORDS, seed=2)
    with pytest.raises(FolderError, match="exists with other content"):
        export_folder(out, target, layout)
    export_folder(out, target, layout, overwrite=True)
    export_folder(out, tmp_path / "fresh", layout)
    for name in tree(target):
        assert (target / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()


def test_a_run_folder_is_never_a_target(tmp_path):
    out = run(tmp_path / "out", RECORDS)
    for target in (out, out / "images", out / "images" / "x"):
        with pytest.raises(FolderError, match="part of a run folder"):
            export_folder(out, target, "flat", overwrite=True)
