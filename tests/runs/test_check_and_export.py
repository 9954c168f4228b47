import json
from pathlib import Path
from typing import get_args

import pytest
from PIL import Image

from sjdvp.config import RunConfig, RunSettings
from sjdvp.errors import ConfigError, FolderError, StorageError
from sjdvp.events import ignore
from sjdvp.generate import Request, generate
from sjdvp.runs.check import check_folder
from sjdvp.runs.evaluators import safe_name
from sjdvp.runs.export import LAYOUTS, export_folder
from sjdvp.runs.sharding import Selection
from sjdvp_cli.export import Layout
from tests.fake_generator import SIZE, FakeGenerator

RECORDS = [
    {"prompt": "a/../b_c", "tag": "one", "include": [], "style": "anime", "id": "../x"},
    {"prompt": "fail", "tag": "two", "include": [], "style": "photo", "id": "b"},
    {"prompt": "plain", "tag": "three", "include": [], "style": "photo", "id": "c"},
]


def run(tmp_path: Path, n: int = 1, selection: Selection = Selection(), **settings: object) -> Path:  # noqa: B008
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    config = RunConfig(run=RunSettings(seed=1, num_images_per_prompt=n, **settings))
    generate(
        Request(config, tmp_path / "out", prompts=prompts, selection=selection),
        FakeGenerator().open,
        ignore,
    )
    return tmp_path / "out"


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def found(findings) -> dict[str, str]:
    return {finding.file: finding.reason for finding in findings}


def test_check_finds_what_is_wrong(tmp_path):
    out = run(tmp_path, n=2)
    report = check_folder(out)
    assert (report.expected, report.ok, report.whole) == (6, 4, False)
    assert found(report.missing) == {f"images/000001_0{s}.png": "failed: no image" for s in (0, 1)}
    a, b, c, d = (
        out / f"images/{name}.png" for name in ("000000_00", "000000_01", "000002_00", "000002_01")
    )
    a.rename(tmp_path / "swap")
    b.rename(a)
    (tmp_path / "swap").rename(b)
    c.write_bytes(c.read_bytes()[:-7])
    d.write_bytes(d.read_bytes()[:-1] + b"x")
    (out / "images/foreign.png").touch()
    (out / "images/.000009.png.000-of-001.tmp").touch()
    report = check_folder(out)
    size = c.stat().st_size
    assert found(report.corrupt) == {
        "images/000000_00.png": "holds the image of images/000000_01.png",
        "images/000000_01.png": "holds the image of images/000000_00.png",
        "images/000002_00.png": f"has {size} bytes, the log says {size + 7}",
        "images/000002_01.png": "has other bytes than were written",
    }
    assert set(found(report.foreign)) == {"images/foreign.png", "images/.000009.png.000-of-001.tmp"}
    assert report.ok == 0
    a.unlink()
    assert (
        found(check_folder(out).missing)["images/000000_00.png"]
        == "generated, but the file is gone"
    )
    assert json.dumps(report.as_json())
    counts = {"expected", "ok", "tokens_only"}
    assert set(report.as_json()) == counts | {"missing", "corrupt", "foreign"}


def test_check_passes_over_what_file_managers_leave(tmp_path):
    out = run(tmp_path, selection=Selection(limit=1))
    for name in (".DS_Store", ".hidden", "Thumbs.db", "desktop.ini"):
        (out / "images" / name).touch()
    assert check_folder(out).whole


def test_expected_is_what_any_command_asked_for(tmp_path):
    out = run(tmp_path, selection=Selection(limit=1))
    assert check_folder(out).expected == 1
    assert check_folder(out).whole
    run(tmp_path, selection=Selection(((2, 2),)))
    assert check_folder(out).expected == 2
    with pytest.raises(FolderError, match="is not a run folder"):
        check_folder(tmp_path)


GENEVAL = {f"0000{i}/samples/0000{s}.png": f"00000{i}_0{s}.png" for i in (0, 2) for s in (0, 1)}
FLAT = {f"00000{i}_0{s}.png": f"00000{i}_0{s}.png" for i in (0, 2) for s in (0, 1)}
COMPBENCH = {
    f"samples/{prompt}_{number:06d}.png": image
    for prompt, number, image in [
        ("plain", 4, "000002_00.png"),
        ("plain", 5, "000002_01.png"),
    ]
}


@pytest.mark.parametrize(
    ("layout", "n", "links", "others"),
    [
        ("geneval", 2, GENEVAL, ["00000/metadata.jsonl", "00002/metadata.jsonl"]),
        ("t2i-compbench", 2, COMPBENCH, []),
        ("dpg", 1, {"x.png": "000000.png", "c.png": "000002.png"}, []),
        ("dpg", 4, {}, ["c.png", "x.png"]),
        ("hpsv2", 1, {"anime/00000.jpg": "000000.png", "photo/00001.jpg": "000002.png"}, []),
        ("flat", 1, {"000000.png": "000000.png", "000002.png": "000002.png"}, []),
        ("flat", 2, FLAT, []),
        (
            "imagefolder",
            1,
            {"000000.png": "000000.png", "000002.png": "000002.png"},
            ["metadata.jsonl"],
        ),
    ],
)
def test_layouts_pair_prompt_and_image_though_one_failed(tmp_path, layout, n, links, others):
    out, target = run(tmp_path, n), tmp_path / "target"
    report = export_folder(out, target, layout)
    assert tree(target) == sorted([*links, *others])
    assert report.written == len(tree(target)) - sum(name.endswith("jsonl") for name in others)
    failed = tuple(f"row 1, sample {s}: failed" for s in range(n))
    unnamed = ("row 0: a file name cannot hold its prompt",) if layout == "t2i-compbench" else ()
    assert report.left_out == failed + unnamed
    for link, image in links.items():
        assert (target / link).samefile(out / "images" / image)
    assert export_folder(out, target, layout) == report


def test_geneval_and_imagefolder_say_what_is_shown(tmp_path):
    out = run(tmp_path)
    export_folder(out, tmp_path / "g", "geneval")
    assert json.loads((tmp_path / "g/00002/metadata.jsonl").read_text()) == {
        "tag": "three",
        "include": [],
        "style": "photo",
        "prompt": "plain",
    }
    export_folder(out, tmp_path / "i", "imagefolder")
    lines = [json.loads(line) for line in (tmp_path / "i/metadata.jsonl").read_text().splitlines()]
    assert [(line["file_name"], line["text"]) for line in lines] == [
        ("000000.png", "a/../b_c"),
        ("000002.png", "plain"),
    ]


@pytest.mark.parametrize(("layout", "n", "rows"), [("dpg", 1, (0, 2)), ("dpg", 4, (0, 2))])
@pytest.mark.parametrize(
    "ids", [("a/b", "a b"), ("../x", "x"), ("é" * 120, "é" * 121), ("2", None), (" a", "a")]
)
def test_rows_that_come_to_one_name_are_named_before_anything_is_written(
    tmp_path, monkeypatch, layout, n, rows, ids
):
    records = [{"prompt": f"prompt {i}"} for i in range(3)]
    for row, identity in zip(rows, ids, strict=True):
        records[row] |= {"id": identity} if identity else {}
    monkeypatch.setattr("tests.runs.test_check_and_export.RECORDS", records)
    out = run(tmp_path, n)
    with pytest.raises(FolderError, match=r"prompt rows 0 and 2 would both be .*\.png") as caught:
        export_folder(out, tmp_path / "t", layout)
    assert "--layout flat" in caught.value.hint
    assert not (tmp_path / "t").exists()
    assert export_folder(out, tmp_path / "flat", "flat").written == 3 * n


def test_dpg_grid_holds_the_four_images(tmp_path):
    out = run(tmp_path, 4)
    export_folder(out, tmp_path / "t", "dpg")
    grid = Image.open(tmp_path / "t/c.png")
    assert grid.size == (2 * SIZE, 2 * SIZE)
    for sample in range(4):
        left, top = sample % 2 * SIZE, sample // 2 * SIZE
        part = grid.crop((left, top, left + SIZE, top + SIZE))
        assert part.tobytes() == Image.open(out / f"images/000002_0{sample}.png").tobytes()


def test_a_corrupt_image_is_not_exported(tmp_path):
    out = run(tmp_path)
    data = (out / "images/000002.png").read_bytes()
    (out / "images/000002.png").write_bytes((out / "images/000000.png").read_bytes())
    report = export_folder(out, tmp_path / "t", "flat")
    assert tree(tmp_path / "t") == ["000000.png"]
    assert "row 2, sample 0: holds the image of images/000000.png" in report.left_out
    (out / "images/000002.png").write_bytes(data)
    (tmp_path / "t/000002.png").write_bytes(b"mine")
    with pytest.raises(FolderError, match="exists with other content"):
        export_folder(out, tmp_path / "t", "flat")


def test_export_without_hard_links_copies(tmp_path, monkeypatch):
    out = run(tmp_path)

    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    export_folder(out, tmp_path / "t", "flat")
    assert (tmp_path / "t/000002.png").read_bytes() == (out / "images/000002.png").read_bytes()


def test_export_refuses_bad_targets(tmp_path):
    out = run(tmp_path)
    with pytest.raises(ConfigError, match="unknown layout 'x'"):
        export_folder(out, tmp_path / "t", "x")
    with pytest.raises(FolderError, match="is part of a run folder"):
        export_folder(out, out / "images" / "t", "flat")
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="file is a file, not a folder"):
        export_folder(out, tmp_path / "file", "flat")
    with pytest.raises(StorageError):
        export_folder(out, tmp_path / "file" / "below", "flat")
    with pytest.raises(FolderError, match=r"p\.jsonl is a file, not a folder"):
        check_folder(tmp_path / "p.jsonl")
    assert set(get_args(Layout)) == set(LAYOUTS)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("../../etc", "etc"),
        ("a\0b", "a x00b"),
        ("..", "prompt"),
        ("/", "prompt"),
        ("é" * 300, "é" * 100),
        (r"C:\a", "C: a"),
    ],
)
def test_names_stay_one_part_of_a_path(text, name):
    assert safe_name(text) == name


def test_a_log_that_names_a_file_elsewhere_is_refused(tmp_path):
    out = run(tmp_path)
    log = next(out.glob("log.shard-*"))
    log.write_text(log.read_text().replace("images/000002.png", "../secret.png"))
    with pytest.raises(FolderError, match="not an image of this folder"):
        export_folder(out, tmp_path / "t", "flat")
