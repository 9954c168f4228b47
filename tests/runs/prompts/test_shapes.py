"""The shapes of JSON and YAML, of ids, columns, folders and templates."""

import json
import re

import pytest

from sjdvp.errors import ConfigError, PromptError
from sjdvp.runs.prompts import FORMATS, ReadOptions, inline_prompts, read_prompts
from sjdvp.runs.prompts.open import READERS
from tests.runs.prompts.reading import carried, ids, read, refusal, texts

KARPATHY = {
    "images": [
        {
            "filename": "a.jpg",
            "split": "test",
            "sentids": [7, 8],
            "sentences": [
                {"tokens": ["a"], "raw": "A man.", "imgid": 0, "sentid": 7},
                {"tokens": ["b"], "raw": "A dog.", "imgid": 0, "sentid": 8},
            ],
        }
    ],
    "dataset": "coco",
}
ROWS_OF_A_SERVER = {"features": [1], "rows": [{"row_idx": 0, "row": {"Prompt": "a"}}], "n": 1}
COUNTED = {"prompt": {"0": "a", "1": "b"}, "n": {"0": 1, "1": 2}}
LABELLED = {"prompt": {"07": "a", "x": "b"}, "n": {"07": 1, "x": 2}}
SPLIT = {"columns": ["prompt", "n"], "index": [0, 1], "data": [["a", 1], ["b", 2]]}
BY_ID = {"007": {"prompt": "a", "id": "x", "n": 1}, "b": {"prompt": "b", "n": 2}}


@pytest.mark.parametrize(
    ("value", "wanted_texts", "wanted_ids", "wanted_extra"),
    [
        (["a", {"text": "b", "n": 2}], ["a", "b"], None, [{}, {"n": 2}]),
        ({"prompt": "a panda", "n": 1}, ["a panda"], None, [{"n": 1}]),
        ({"prompts": ["a", "b"]}, ["a", "b"], None, [{}, {}]),
        ({"v": 1, "Prompts": [{"text": "a", "v": 2}, "b"]}, ["a", "b"], None, [{"v": 2}, {"v": 1}]),
        ({"prompts": {"007": "a"}}, ["a"], ["007"], [{}]),
        ({"data": [{"prompt": "a"}]}, ["a"], None, [{}]),
        ({"x": ["a"], "y": [{"prompt": "b"}]}, ["a", "b"], None, [{"style": "x"}, {"style": "y"}]),
        ({"007": "a", "b.jpg": "b"}, ["a", "b"], ["007", "b.jpg"], [{}, {}]),
        (BY_ID, ["a", "b"], ["007", "b"], [{"id": "x", "n": 1}, {"n": 2}]),
        (COUNTED, ["a", "b"], None, [{"n": 1}, {"n": 2}]),
        (LABELLED, ["a", "b"], ["07", "x"], [{"n": 1}, {"n": 2}]),
        ({"prompt": ["a", "b"], "n": [1, 2]}, ["a", "b"], None, [{"n": 1}, {"n": 2}]),
        (SPLIT, ["a", "b"], None, [{"n": 1}, {"n": 2}]),
        ({**SPLIT, "index": ["x", "y"]}, ["a", "b"], ["x", "y"], [{"n": 1}, {"n": 2}]),
        ([{"prompt": "a", "id": 3.0}, {"prompt": "b", "id": None}], ["a", "b"], ["3", None], None),
        (KARPATHY, ["A man.", "A dog."], ["7", "8"], None),
    ],
)
def test_shapes_that_people_have(tmp_path, value, wanted_texts, wanted_ids, wanted_extra):
    for data in (json.dumps(value), json.dumps(value, indent=2)):
        found = read(tmp_path, "p.json", data)
        assert texts(found) == wanted_texts
        assert ids(found) == (wanted_ids or [None] * len(wanted_texts))
        assert carried(found) == (wanted_extra or carried(found))


def test_a_sentence_of_karpathy_carries_its_image(tmp_path):
    row = carried(read(tmp_path, "dataset_coco.json", json.dumps(KARPATHY)))[1]
    assert row == {"filename": "a.jpg", "split": "test", "imgid": 0, "sentid": 8}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"message": "Not Found", "status": "404"}, "not read, keys 'message', 'status'"),
        ({"Prompt_en": {"0": "a"}, "n": {"0": 1}}, "no column named .*found: 'Prompt_en', 'n'"),
        ([["a", 1]], r"to_json\(orient='records'\)"),
        (ROWS_OF_A_SERVER, "--column row.Prompt"),
        ([{"caption": ["a", "b"]}], "--column caption.0 takes the first"),
        ({**SPLIT, "data": [["a"]]}, "row 1: must be a list of 2 cells"),
        ([{"prompt": "a", "id": 1.5}], "'id' must be text or a whole number"),
        ([{"prompt": None}], "entry 1: no prompt in 'prompt'.*--skip-empty"),
        ({}, "must be a list or an object"),
        ({"data": {}}, "no prompt in it"),
        ({"images": [{"sentences": [{"raw": "a"}, {"text": 1}]}]}, "sentence 2: no column 'raw'"),
        ({"annotations": [{"bbox": [1]}]}, "annotation 1: no column 'caption'"),
    ],
)
def test_shapes_that_are_refused_say_why(tmp_path, value, message):
    assert re.search(message, refusal(tmp_path, "p.json", json.dumps(value)))


def test_what_is_left_out_of_a_document_is_told(tmp_path):
    found = read(tmp_path, "p.json", '{"prompts": ["a"], "tags": ["x", "y"]}')
    assert (texts(found), found.notes) == (["a"], ("not read: 'tags'",))


def test_columns_inside_of_others_and_alternatives(tmp_path):
    rows = json.dumps(ROWS_OF_A_SERVER)
    assert texts(read(tmp_path, "rows", rows, columns=("row.Prompt",))) == ["a"]
    lines = '{"long": "a", "prompt": "b"}\n{"prompt": "c"}\n{"a.b": "d", "a": {"b": "e"}}\n'
    found = read(tmp_path, "p.jsonl", lines, columns=("long", "prompt", "a.b"))
    assert texts(found) == ["a", "c", "d"]
    captions = '[{"caption": ["a", "b"]}]'
    assert texts(read(tmp_path, "p.json", captions, columns=("caption.1",))) == ["b"]


def test_ids_by_column_and_without(tmp_path):
    data = "prompt,name,id\na,x,1.0\nb,y,2.0\nc,,\n"
    assert ids(read(tmp_path, "p.csv", data)) == ["1", "2", None]
    named = read(tmp_path, "p.csv", data, id_column="name")
    assert (ids(named), carried(named)[0]) == (["x", "y", None], {"id": "1.0"})
    assert ids(read(tmp_path, "p.csv", data, ids=False)) == [None] * 3
    assert "no column 'key' for the id" in refusal(tmp_path, "p.csv", data, id_column="key")
    assert "must be an object" in refusal(tmp_path, "p.json", '["a"]', id_column="key")
    by_id = json.dumps({"007": {"prompt": "a"}})
    assert carried(read(tmp_path, "p.json", by_id, ids=False)) == [{"key": "007"}]


def test_delimiters_headers_and_empty_rows(tmp_path):
    rows = "1.jpg| a cat\n2.jpg| a dog\n"
    found = read(tmp_path, "p", rows, delimiter="|", header=False, columns=("2",))
    assert texts(found) == ["a cat", "a dog"]
    assert texts(read(tmp_path, "p.tsv", "a cat\nb, c\n", header=False)) == ["a cat", "b, c"]
    literal = read(tmp_path, "p", 'prompt;n\n"a;1\n', format="tsv", delimiter=";")
    assert texts(literal) == ['"a']
    tabs = read(tmp_path, "p.csv", 'prompt\tn\n"a\tb"\t1\n', delimiter="\\t")
    assert texts(tabs) == ["a\tb"]
    assert "which column" in refusal(tmp_path, "p.csv", "1.jpg,a cat\n", header=False)
    gaps = "prompt,n\na,1\n,2\n,\n\u200b,3\nb\n"
    assert "--skip-empty" in refusal(tmp_path, "p.csv", gaps)
    found = read(tmp_path, "p.csv", gaps, skip_empty=True)
    assert (texts(found), found.empty, found.skipped) == (["a", "b"], 2, 1)


def test_spaces_around_names_and_after_delimiters(tmp_path):
    data = 'image_name| comment_number| comment\n1.jpg| 0| Two "men" .\n'
    assert texts(read(tmp_path, "results", data, columns=("comment",))) == ['Two "men" .']
    assert texts(read(tmp_path, "p.csv", "id,prompt\n1, a cat\n")) == [" a cat"]


def test_a_tsv_with_quoted_cells_is_not_taken_literally_by_accident(tmp_path):
    pandas = 'prompt\tn\n"a ""red"" car"\t1\n"two\nlines"\t2\n'
    told = refusal(tmp_path, "p.tsv", pandas)
    assert re.search(r"line 2: a cell is quoted.*line 3: a cell is quoted", told, re.DOTALL)
    assert "--format csv --delimiter '\\t'" in told
    undone = read(tmp_path, "p.tsv", pandas, format="csv", delimiter="\t")
    assert texts(undone) == ['a "red" car', "two\nlines"]
    assert texts(read(tmp_path, "p.tsv", pandas, format="tsv"))[0] == '"a ""red"" car"'
    literal = 'prompt\tn\n"G I" painted\t1\n"quoted"\t2\n6" nail\n'
    assert texts(read(tmp_path, "p.tsv", literal)) == ['"G I" painted', '"quoted"', '6" nail']


def test_yaml_scalars_stay_text_and_its_traps_are_refused(tmp_path):
    found = read(tmp_path, "p.yaml", "007: {prompt: no}\n010: {prompt: 1e5, m: ~}\n")
    assert (ids(found), texts(found)) == (["007", "010"], ["no", "1e5"])
    assert "aliases" in refusal(tmp_path, "p.yaml", "- &a x\n- *a\n")
    assert "appears twice" in refusal(tmp_path, "p.yaml", "prompt: a\nprompt: b\n")
    assert "2 YAML documents" in refusal(tmp_path, "p.yaml", "- a\n---\n- b\n")
    assert "line 2: not valid YAML" in refusal(tmp_path, "p.yaml", '- a\n- "b" c\n')
    assert "must be a list" in refusal(tmp_path, "p.yaml", "a cat\n")


def test_templates(tmp_path):
    data = "prompt,style,n\na cat,flat,3\n"
    found = read(tmp_path, "p.csv", data, template="{prompt}, {style} {{{n}}}")
    assert texts(found) == ["a cat, flat {3}"]
    assert carried(found) == [{"prompt": "a cat", "style": "flat", "n": "3"}]
    assert found.duplicates == 0
    inline = inline_prompts(["a cat"], ReadOptions(template="{prompt}, flat design"))
    assert texts(inline) == ["a cat, flat design"]
    missing = refusal(tmp_path, "p.csv", data, template="{prompt} {colour}")
    assert "no column 'colour' for --template; there are: prompt, style, n" in missing
    nested = read(tmp_path, "p.jsonl", '{"prompt": "a", "x": {"y": 2}}', template="{prompt} {x.y}")
    assert texts(nested) == ["a 2"]
    assert "an object, not text" in refusal(
        tmp_path, "p.jsonl", '{"prompt": "a", "x": {}}', template="{x}"
    )
    for bad in ("{prompt", "{}", "{prompt!r}", "{prompt:>9}", "}"):
        with pytest.raises(ConfigError, match="--template"):
            read(tmp_path, "p.csv", data, template=bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xls"}, "unknown format 'xls'"),
        ({"delimiter": ";;"}, "one character"),
        ({"delimiter": '"'}, "one character"),
        ({"delimiter": ";", "format": "json"}, "--delimiter is for tables"),
        ({"header": False, "format": "txt"}, "--no-header is for tables"),
        ({"id_column": "x", "ids": False}, "contradict"),
    ],
)
def test_options_that_contradict_each_other(options, message):
    with pytest.raises(ConfigError, match=message):
        ReadOptions(**options)


def test_every_format_has_a_reader():
    assert {"auto", "dir", "parquet", *READERS} == {*FORMATS}


def test_a_folder_of_lists_is_not_a_folder_of_prompts(tmp_path):
    (tmp_path / "color_val.txt").write_text("".join(f"{n} apples\n" for n in range(300)))
    (tmp_path / "more.txt").write_text("a cat\n")
    with pytest.raises(PromptError, match="300 lines: a list of prompts") as caught:
        read_prompts(tmp_path)
    assert "--format txt" in caught.value.hint
    lists = read_prompts(tmp_path, ReadOptions("txt"))
    assert (len(lists), carried(lists)[-1]) == (301, {"file": "more.txt"})
    assert len(read_prompts(tmp_path, ReadOptions("dir"))) == 2


def test_folders_with_nothing_to_read_and_of_one_format(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"x")
    with pytest.raises(PromptError, match=r"no prompt file in it; found: a\.jpg"):
        read_prompts(tmp_path)
    (tmp_path / "a.csv").write_text("prompt\na\n")
    (tmp_path / "b.jsonl").write_text('{"prompt": "b"}\n')
    assert texts(read_prompts(tmp_path)) == ["a", "b"]
    assert texts(read_prompts(tmp_path, ReadOptions("jsonl"))) == ["b"]
    (tmp_path / "c.txt").write_text('{"prompt": "c"}\n')
    with pytest.raises(PromptError, match=r"c\.txt: is jsonl"):
        read_prompts(tmp_path)
    assert texts(read_prompts(tmp_path, ReadOptions("dir", ids=False))) == ['{"prompt": "c"}']
    with pytest.raises(PromptError, match="one prompt, so there is no column 'x'"):
        read_prompts(tmp_path, ReadOptions("dir", ("x",)))
