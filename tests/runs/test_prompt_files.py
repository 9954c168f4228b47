import io
import json
import os
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sjdvp.errors import ConfigError, PromptError
from sjdvp.runs.prompts import (
    FORMATS,
    PromptSet,
    ReadOptions,
    inline_prompts,
    read_prompts,
    stream_prompts,
)
from sjdvp.runs.prompts.model import is_blank
from sjdvp.runs.prompts.text import split_lines
from sjdvp.text import printable

DATA = Path(__file__).parents[1] / "data" / "prompts"


def read(tmp_path: Path, data: bytes, name: str = "p.txt", **options: object) -> PromptSet:
    (tmp_path / name).write_bytes(data)
    return read_prompts(tmp_path / name, ReadOptions(**options))


def texts(prompts: PromptSet) -> list[str]:
    return [prompt.text for prompt in prompts.prompts]


@pytest.mark.parametrize(
    ("name", "format", "count", "first"),
    [
        ("PartiPrompts_excerpt.tsv", "tsv", 48, "bond"),
        ("SJDPrompts_first3.tsv", "tsv", 3, "A hawk-man with a red head"),
        ("drawbench_first.csv", "csv", 3, "A red colored car."),
        ("geneval_excerpt.jsonl", "geneval", 5, "a photo of a bench"),
        (
            "coco2014val30k_shape.json",
            "json",
            10,
            "This wire metal rack holds several pairs of shoes and sandals",
        ),
        (
            "coco2017_captions_shape.json",
            "coco",
            4,
            "A black Honda motorcycle parked in front of a garage.",
        ),
        ("color_val_excerpt.txt", "txt", 8, "a green bench and a blue bowl"),
        ("dpg", "dir", 2, "An expansive field"),
    ],
)
def test_files_that_people_use(name, format, count, first):
    prompts = read_prompts(DATA / name)
    assert (prompts.format, len(prompts), prompts.skipped) == (format, count, 0)
    assert prompts.prompts[0].text.startswith(first)
    assert [p.index for p in prompts.prompts] == list(range(count))


def test_parti_rows_stay_literal():
    rows = read_prompts(DATA / "PartiPrompts_excerpt.tsv").prompts
    assert any(row.text.startswith('"G I G G L E" painted') for row in rows)
    assert {"300", "101"} <= {row.text for row in rows}
    assert rows[0].extra == {
        "Category": "Abstract",
        "Challenge": "Basic",
        "Note": "Biology-inspired concepts with multiple meanings",
    }


def test_one_column_csv_with_bare_commas_is_refused_with_advice():
    path = DATA / "llamagen_coco_captions_NOT_comma_separated.csv"
    with pytest.raises(PromptError, match="line 5: 4 cells under a header of 1") as caught:
        read_prompts(path)
    assert "--format tsv" in caught.value.hint
    assert len(read_prompts(path, ReadOptions("tsv"))) == 9


def test_dpg_ids_are_file_names_and_geneval_keys_are_carried():
    assert [p.id for p in read_prompts(DATA / "dpg").prompts] == ["0", "diffusiondb25"]
    assert read_prompts(DATA / "geneval_excerpt.jsonl").prompts[0].extra["include"] == [
        {"class": "bench", "count": 1}
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_at_lf_crlf_cr_only(tmp_path, end):
    lines = [
        "a\x0bb",
        "c\x85d",
        "e\u2028f\u2029g\x1c",
        "",
        "  lead and trail ",
        "0",
        "NA",
        "# no comment",
        '"q',
    ]
    prompts = read(tmp_path, b"\xef\xbb\xbf" + end.join(lines).encode())
    assert texts(prompts) == [line for line in lines if line]
    assert prompts.skipped == 1


def test_a_first_line_with_nothing_but_a_bom_is_blank(tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbf\na cat\n")
    found = read_prompts(tmp_path / "p.txt")
    assert (texts(found), found.skipped) == (["a cat"], 1)


def test_csv_follows_rfc_4180(tmp_path):
    data = 'id,Prompt,note\nx,"a, ""b""\r\nc",0\n\n,NA,\n'
    prompts = read(tmp_path, data.encode(), "p.csv")
    assert texts(prompts) == ['a, "b"\nc', "NA"]
    assert [p.id for p in prompts.prompts] == ["x", None]
    assert prompts.prompts[0].extra == {"note": "0"}
    assert prompts.skipped == 1


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "p.txt",
            b"ok\nnul\0\nbad \xff\n",
            r"2 problems\n  line 2: a NUL character\n  line 3: not valid UTF-8 \(byte 0xff",
        ),
        ("p.txt", b"\n  \n", "no prompt"),
        ("p.txt", b"", "no prompt"),
        ("p.tsv", b"a\tb\n1\t2\n", "line 1: no column named prompt"),
        (
            "p.tsv",
            b"prompt\tx\ny\tz\tmore\n\tz\n",
            r"line 2: 3 cells .*\n  line 3: no prompt in 'prompt'",
        ),
        ("p.csv", b'prompt\na\n"b\nc\n', "line 3: a quote opens a cell here and is never closed"),
        ("p.csv", b'prompt\n"a"b\nc\n"d\n', r"line 2: not RFC 4180.*\n  line 4: a quote opens"),
        ("p.csv", b"prompt\na\0b\n", "line 2: a NUL character"),
        ("p.csv", b"id,prompt\n1,a\n1,b\n", "line 3: the id '1' is already on line 2"),
        ("p.csv", b"prompt,x,x\na,b,c\n", "two columns have the same name: 'x'"),
        (
            "p.jsonl",
            b'{"prompt": 3}\n[]\n{"x": "y"}\n{"prompt": ""}\n',
            "(?s)4 problems.*text, found a number.*a list.*no prompt in 'prompt'",
        ),
        ("p.jsonl", b'{"prompt": "a", "prompt": "b"}\n', "'prompt' appears twice"),
        ("p.jsonl", b'{"prompt": "a", "x": NaN}\n', "NaN"),
        ("p.jsonl", b'{"prompt": "a", "x": 1e999}\n', "too large"),
        ("p.jsonl", rb'{"prompt": "\ud800"}', "surrogate"),
        ("p.jsonl", rb'{"prompt": "a\u0000"}', "NUL"),
        ("p.jsonl", b'{"prompt": "a", "id": true}\n', "'id' must be text"),
        ("p.jsonl", b'{"prompt": ' + b"[" * 100_000, "nested too deeply|not valid JSON"),
        ("p.json", b'["a",\n"b"', "line 2, column"),
        ("p.json", b"3", "found a number"),
        ("p.json", b'{"images": [1]}', "a shape that is not read, keys 'images'|must be an object"),
        ("p.json", b'{"message": "Not Found", "status": "404"}', "a shape that is not read"),
        ("p.json", b'["a", 3]', "entry 2: must be an object"),
        (
            "p.txt",
            "a\nb".encode("utf-16"),
            "p.txt: line 1: seems to be UTF-16.*iconv -f UTF-16 -t UTF-8",
        ),
        ("p.csv", "prompt\nb".encode("utf-16"), "seems to be UTF-16"),
        (
            "p.txt",
            b"\0\n" * 3000,
            r"3000 problems(\n  line \d+: a NUL character){20}\n  and 2980 more$",
        ),
    ],
)
def test_problems_are_told_with_their_lines(tmp_path, name, data, message):
    with pytest.raises(PromptError, match=message) as caught:
        read(tmp_path, data, name)
    assert caught.value.exit_code == 2


def test_column_and_format_options(tmp_path):
    data = b"prompt\tother\na\tb\n"
    assert texts(read(tmp_path, data, "p.tsv", columns=("other",))) == ["b"]
    assert texts(read(tmp_path, data, "p.tsv", format="txt")) == ["prompt\tother", "a\tb"]
    with pytest.raises(PromptError, match="no column 'missing'"):
        read(tmp_path, data, "p.tsv", columns=("missing",))
    with pytest.raises(ConfigError, match="unknown format 'xls'"):
        read(tmp_path, data, "p.tsv", format="xls")
    with pytest.raises(PromptError, match="not a GenEval record"):
        read(tmp_path, b'{"prompt": "a"}', "p.jsonl", format="geneval")
    with pytest.raises(PromptError, match="No such file"):
        read_prompts(tmp_path / "absent.txt")


def test_duplicates_are_counted_and_kept(tmp_path):
    prompts = read(tmp_path, b"a\nb\na\na\n")
    assert (len(prompts), prompts.duplicates) == (4, 2)


def test_folder_skips_blank_files_and_tells_bad_ones(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"two\r\nlines\n\n")
    (tmp_path / "b.txt").write_bytes(b" \n")
    prompts = read_prompts(tmp_path)
    assert (texts(prompts), prompts.skipped) == (["two\nlines"], 1)
    (tmp_path / "c.txt").write_bytes(b"\xff")
    with pytest.raises(PromptError, match=r"c\.txt.*line 1: not valid UTF-8"):
        read_prompts(tmp_path)


def test_inline_prompts():
    assert texts(inline_prompts(["a", "a"])) == ["a", "a"]
    with pytest.raises(PromptError, match="--prompt 2: an empty prompt"):
        inline_prompts(["a", " "])
    with pytest.raises(PromptError, match="not valid UTF-8"):
        inline_prompts(["\udcff"])


def test_stream_starts_before_the_input_ends():
    reader, writer = os.pipe()
    got: list[str] = []
    first = threading.Event()

    def consume() -> None:
        with os.fdopen(reader, "rb") as stream:
            for prompt in stream_prompts(stream):
                got.append(prompt.text)
                first.set()

    thread = threading.Thread(target=consume)
    thread.start()
    os.write(writer, b"\xef\xbb\xbffirst\r")
    assert first.wait(5)
    os.write(writer, b"\nsecond\n\nthird")
    os.close(writer)
    thread.join(5)
    assert got == ["first", "second", "third"]


def test_a_stream_tells_what_it_skips():
    told = []
    data = b'{"prompt": "a"}\n\n{"prompt": " "}\n\n{"prompt": "b"}\n'
    stream = stream_prompts(
        io.BytesIO(data), ReadOptions(skip_empty=True), lambda *note: told.append(note)
    )
    assert [prompt.text for prompt in stream] == ["a", "b"]
    assert told == [("info", "2 blank lines skipped"), ("info", "1 rows without a prompt skipped")]


def test_stream_knows_jsonl_and_stops_at_the_first_problem():
    stream = stream_prompts(io.BytesIO(b'\n{"prompt": "a"}\n{"prompt": 1}\n'))
    assert next(stream).text == "a"
    with pytest.raises(PromptError, match="stdin: line 3"):
        next(stream)
    with pytest.raises(PromptError, match="no prompt"):
        list(stream_prompts(io.BytesIO(b"\n")))


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), max_size=12))
def test_lines_do_not_depend_on_how_the_bytes_arrive(data, cuts):
    pieces, rest = [], data
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    whole, pieced = (
        [(line.text, line.problem) for line in split_lines(chunks)]
        for chunks in ([data], [*filter(None, pieces), rest])
    )
    assert whole == pieced


nasty = st.lists(
    st.one_of(
        st.binary(max_size=8),
        st.sampled_from(
            [
                b"prompt",
                b"id",
                b"\t",
                b",",
                b'"',
                b"\r",
                b"\n",
                b"\0",
                b"\xef\xbb\xbf",
                b"{",
                b"}",
                b"[",
                b"]",
                b":",
            ]
        ),
        st.sampled_from(
            [
                b'{"prompt": "a"}',
                b'"a"',
                b"prompt\tid\n",
                b"prompt,id\n",
                "\u2028".encode(),
                b"\\ud800",
                b"NaN",
                b"1e999",
            ]
        ),
    ),
    max_size=24,
).map(b"".join)


def _unmarked(line: bytes) -> str:
    return line.decode().replace("\ufeff", "")


@settings(max_examples=250, deadline=None)
@given(nasty, st.sampled_from([f for f in FORMATS if f != "dir"]))
def test_any_bytes_are_all_prompts_or_an_error(tmp_path_factory, data, format):
    path = tmp_path_factory.getbasetemp() / "random"
    path.write_bytes(data)
    try:
        prompts = read_prompts(path, ReadOptions(format))
    except PromptError as error:
        assert str(error).isprintable() or "\n  " in str(error)
        return
    assert len(prompts) > 0
    assert all(not is_blank(p.text) and "\0" not in p.text for p in prompts.prompts)
    assert all(p.text.encode() for p in prompts.prompts)
    json.dumps([dict(p.extra) for p in prompts.prompts], allow_nan=False).encode()
    if prompts.format == "txt":
        lines = re.split(rb"\r\n|\r|\n", data.removeprefix(b"\xef\xbb\xbf"))
        lines = lines[:-1] if lines[-1] == b"" else lines
        assert len(prompts) + prompts.skipped == len(lines)
        shown = [line for line in lines if not is_blank(line.decode())]
        assert [p.text for p in prompts.prompts] == [_unmarked(line) for line in shown]


a_prompt = st.text(
    st.characters(exclude_characters="\0\ufeff", exclude_categories=["Cs"]), min_size=1
).filter(lambda text: not is_blank(text))


@settings(max_examples=60, deadline=None)
@given(st.lists(a_prompt, min_size=1))
def test_csv_and_json_lose_no_character(tmp_path_factory, wanted):
    folder = tmp_path_factory.getbasetemp()
    rows = ["prompt", *('"' + text.replace('"', '""') + '"' for text in wanted)]
    (folder / "round.csv").write_bytes("\n".join(rows).encode())
    assert texts(read_prompts(folder / "round.csv")) == [
        re.sub("\r\n|\r", "\n", text) for text in wanted
    ]
    (folder / "round.jsonl").write_bytes(
        b"".join(json.dumps({"prompt": text}).encode() + b"\n" for text in wanted)
    )
    assert texts(read_prompts(folder / "round.jsonl")) == wanted


def test_control_characters_are_escaped_for_people():
    assert printable("a\x1b[31m\u202e\u2028\n é 👩‍🎨") == "a\\x1b[31m\\u202e\\u2028\\n é 👩‍🎨"


@pytest.mark.parametrize("name", ["p.txt", "p.tsv", "p.csv", "p.jsonl"])
@pytest.mark.parametrize("length", [131_072, 131_073, 1_000_000])
def test_a_prompt_may_be_as_long_as_it_is_in_any_format(tmp_path, name, length):
    prompt = "x" * length
    texts = {
        "p.txt": prompt,
        "p.tsv": f"prompt\tid\n{prompt}\t1",
        "p.csv": f'prompt,id\n"{prompt}",1',
        "p.jsonl": json.dumps(prompt),
    }
    (read_back,) = read(tmp_path, texts.get(name, prompt).encode(), name).prompts
    assert read_back.text == prompt
