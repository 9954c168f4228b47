"""Files that people brought and that were misread: each is read as they meant it, or refused."""

import gzip
import io
import json
from pathlib import Path

import pytest

from sjdvp.errors import PromptError
from sjdvp.runs.prompts import ReadOptions, read_prompts, read_stream
from tests.runs.prompts.reading import carried, ids, read, refusal, texts

CASES = Path(__file__).parents[2] / "data" / "cases"
LIST = '[\n  "a red apple",\n  "a blue car"\n]\n'
PIPED = (
    "studio_0001.jpg|a woman in a yellow dress holding an umbrella\n"
    "studio_0002.jpg|a girl in a greenhouse looking at plants\n"
)
UNNAMED = (
    "0000001.jpg, A man stands on a snowy summit .\n"
    '0000001.jpg, "A climber, at dawn, looks over the valley ."\n'
)
BATCH = (
    '{"custom_id": "s1", "url": "/v1", "body": {"model": "m", "prompt": "a fox in snow", "n": 1}}\n'
    '{"custom_id": "s2", "url": "/v1", "body": {"model": "m", "prompt": "a boat", "n": 2}}\n'
)


@pytest.mark.parametrize("name", ["list.json", "list", "63", "list.prompts", "list.txt"])
def test_a_json_list_is_read_whatever_the_file_is_called(tmp_path, name):
    found = read(tmp_path, name, LIST)
    assert (found.format, texts(found)) == ("json", ["a red apple", "a blue car"])


def test_a_json_list_is_read_from_a_pipe():
    assert texts(read_stream(io.BytesIO(LIST.encode()))) == ["a red apple", "a blue car"]


def test_requests_of_a_batch_interface(tmp_path):
    assert "--column body.prompt" in refusal(tmp_path, "batch.jsonl", BATCH)
    found = read(tmp_path, "batch.jsonl", BATCH, columns=("body.prompt",), id_column="custom_id")
    assert (texts(found), ids(found)) == (["a fox in snow", "a boat"], ["s1", "s2"])
    assert carried(found)[1]["body"] == {"model": "m", "prompt": "a boat", "n": 2}


def test_captions_without_a_header(tmp_path):
    assert "--no-header --column 2" in refusal(tmp_path, "c.csv", UNNAMED)
    found = read(tmp_path, "c.csv", UNNAMED, header=False, columns=("2",))
    assert texts(found) == [
        "A man stands on a snowy summit .",
        "A climber, at dawn, looks over the valley .",
    ]
    assert carried(found) == [{"1": "0000001.jpg"}] * 2


def test_file_name_and_caption_with_a_bar_between(tmp_path):
    advice = refusal(tmp_path, "c.txt", PIPED)
    assert "--delimiter '|' --no-header --column 2 --id-column 1" in advice
    options = {"delimiter": "|", "header": False, "columns": ("2",), "id_column": "1"}
    found = read(tmp_path, "c.txt", PIPED, **options)
    assert ids(found) == ["studio_0001.jpg", "studio_0002.jpg"]
    assert texts(found)[1] == "a girl in a greenhouse looking at plants"


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ("\ufeffa red apple\r\n\ufeffa blue car\r\n", ["a red apple", "a blue car"]),
        ("a red \ufeffapple\ufeff\n", ["a red apple"]),
        ("a\n\u200b\n \u2060\u200d\n\ufeff\nb\n", ["a", "b"]),
        ("🧑\u200d🎨 at work\n", ["🧑\u200d🎨 at work"]),
    ],
)
def test_marks_that_cannot_be_seen(tmp_path, data, wanted):
    assert texts(read(tmp_path, "p.txt", data)) == wanted


def test_two_files_joined_without_a_line_end_are_not_one_prompt(tmp_path):
    found = refusal(tmp_path, "p.txt", "a red apple\ufeffa blue car\n")
    assert "line 1" in found
    assert "two files joined" in found


def test_ids_that_are_not_of_the_row(tmp_path):
    data = "id,caption\n391895,A man on a moped\n391895,A man riding a bike\n"
    assert "--no-ids" in refusal(tmp_path, "coco.csv", data)
    found = read(tmp_path, "coco.csv", data, ids=False)
    assert (ids(found), carried(found)) == ([None, None], [{"id": "391895"}] * 2)


@pytest.mark.parametrize("name", ["excel.csv", "excel.txt", "excel"])
@pytest.mark.parametrize("first", ["sep=;\r\n", '"sep=;"\r\n', ""])
def test_excel_in_europe(tmp_path, name, first):
    data = f'\ufeff{first}prompt;seed;style\r\n"a red fox; running";12;photo\r\n'
    found = read(tmp_path, name, data)
    assert (found.format, texts(found)) == ("csv", ["a red fox; running"])
    assert carried(found) == [{"seed": "12", "style": "photo"}]


def test_gzip_is_read_from_files_and_pipes(tmp_path):
    data = gzip.compress(b"a red apple\n") + gzip.compress(b"a panda\n")
    found = read(tmp_path, "first.txt.gz", data)
    assert (found.format, texts(found)) == ("txt", ["a red apple", "a panda"])
    assert texts(read_stream(io.BytesIO(data))) == ["a red apple", "a panda"]
    records = gzip.compress(b'{"prompt": "a"}\n')
    assert read(tmp_path, "p.jsonl.gz", records, format="jsonl").format == "jsonl"
    assert "the end of the gzip file is missing" in refusal(tmp_path, "p.gz", data[:-3])
    assert "damaged" in refusal(tmp_path, "p.gz", data[:-6] + b"\xff" * 6)


def test_another_column_leaves_the_prompt_of_the_benchmark_in_the_row(tmp_path):
    record = {"tag": "counting", "include": [], "prompt": "two cars", "detailed_caption": "Two."}
    found = read(tmp_path, "g.jsonl", json.dumps(record), columns=("detailed_caption",))
    assert (found.format, texts(found)) == ("geneval", ["Two."])
    assert carried(found)[0]["prompt"] == "two cars"


def test_styles_of_hpsv2(tmp_path):
    styles = {"anime": ["a red apple", "a panda"], "photo": ["a blue car"]}
    found = read(tmp_path, "all.json", json.dumps(styles))
    assert texts(found) == ["a red apple", "a panda", "a blue car"]
    assert [row["style"] for row in carried(found)] == ["anime", "anime", "photo"]


def test_a_pointer_of_lfs_is_never_a_prompt(tmp_path):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    for name in ("p.txt", "p.json", "p.csv", "p.parquet", "p"):
        assert "git lfs pull" in refusal(tmp_path, name, pointer)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "1.txt").write_text(pointer)
    with pytest.raises(PromptError, match="LFS"):
        read_prompts(tmp_path / "folder")


def test_records_by_name_as_in_mjhq(tmp_path):
    records = {
        "0b3c": {"category": "animals", "prompt": "a tabby cat"},
        "007": {"category": "food", "prompt": "ramen bowl --ar 3:2"},
    }
    found = read(tmp_path, "meta_data.json", json.dumps(records))
    assert (ids(found), texts(found)) == (["0b3c", "007"], ["a tabby cat", "ramen bowl --ar 3:2"])
    assert carried(found) == [{"category": "animals"}, {"category": "food"}]


def test_folders_read_subfolders_and_any_case_and_name_what_they_leave(tmp_path):
    files = {"1.txt": "a red apple", "2.TXT": "a blue car", "4.caption": "a frog"}
    for name, text in {**files, "sub/3.txt": "a panda", "1.jpg": "", "README.md": "x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".DS_Store").write_text("x")
    found = read_prompts(tmp_path)
    assert ids(found) == ["1", "2", "4", "sub/3"]
    assert found.notes == (f"left out of {tmp_path.name}: 1.jpg, README.md",)


def test_a_folder_of_record_files_as_in_tiif(tmp_path):
    for name, text in {"a_prompts.jsonl": "A cat.", "b_prompts.jsonl": "A vase."}.items():
        record = {"type": name[0], "short_description": text, "long_description": "x"}
        (tmp_path / name).write_text(json.dumps(record) + "\n")
    found = read_prompts(tmp_path, ReadOptions(columns=("short_description",)))
    assert texts(found) == ["A cat.", "A vase."]
    assert [(row["file"], row["type"]) for row in carried(found)] == [
        ("a_prompts.jsonl", "a"),
        ("b_prompts.jsonl", "b"),
    ]


def test_yaml_is_read_with_its_defaults(tmp_path):
    data = (
        "# nightly set\ndefaults: {n: 2}\nprompts:\n  - a red apple\n  - text: a blue car\n"
        "    seed: 7\n"
    )
    for name in ("prompts.yaml", "prompts.txt", "63"):
        found = read(tmp_path, name, data)
        assert (found.format, texts(found)) == ("yaml", ["a red apple", "a blue car"])
        assert carried(found) == [{"n": "2"}, {"n": "2", "seed": "7"}]


def test_several_files_one_after_another(tmp_path):
    (tmp_path / "a.txt").write_text("a red apple\na blue car\n")
    (tmp_path / "b.csv").write_text("prompt,n\na panda,2\n")
    paths = [tmp_path / "a.txt", tmp_path / "b.csv"]
    found = read_prompts(paths)
    assert texts(found) == ["a red apple", "a blue car", "a panda"]
    assert [prompt.index for prompt in found.prompts] == [0, 1, 2]
    assert (found.source, found.format) == ("a.txt, b.csv", "txt, csv")
    assert read_prompts(paths[:1]).digest != found.digest != read_prompts(paths[::-1]).digest
    (tmp_path / "b.csv").write_text("prompt,n\n,2\n")
    with pytest.raises(PromptError, match=r"b\.csv, line 2: no prompt"):
        read_prompts(paths)


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra parquet")
    data = (CASES / "two_rows.parquet").read_bytes()
    for name in ("p.parquet", "p"):
        found = read(tmp_path, name, data)
        assert (found.format, texts(found)) == ("parquet", ["a red apple", "a blue car, parked"])
        assert carried(found)[0] == {"Category": "fruit", "seed": 1}
    assert "damaged" in refusal(tmp_path, "p.parquet", data[:-20])
    assert "found: 'Prompt'" in refusal(tmp_path, "p.parquet", data, columns=("other",))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    data = (CASES / "two_rows.parquet").read_bytes()
    assert "pip install '.[parquet]'" in refusal(tmp_path, "p.parquet", data)
