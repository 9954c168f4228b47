"""Structured text is read for what it is or refused; it is never taken for plain prompts."""

import csv
import gzip
import io
import json
import os
import pickle
import threading

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sjdvp.errors import SjdvpError
from sjdvp.runs.prompts import ReadOptions, read_prompts, read_stream, stream_prompts
from sjdvp.runs.prompts.model import is_blank
from tests.runs.prompts.reading import read, refusal, texts

words = st.text(st.characters(exclude_characters="\0\ufeff", exclude_categories=["Cs"]), min_size=1)
ordinary = st.sampled_from(
    ["a red apple", "a cat, a dog", "- x", "[y]", "{z}", 'say "hi"', "q: r", "x" * 120, "a b " * 40]
)
prompt_lists = st.lists(
    st.one_of(ordinary, words).filter(lambda text: not is_blank(text)), min_size=1, max_size=5
)


def as_json(prompts, layout, indent):
    shapes = {
        "list": prompts,
        "records": [{"prompt": text, "n": 1} for text in prompts],
        "wrapped": {"prompts": prompts},
        "by style": {"anime": prompts},
        "by id": {f"id{n}": {"prompt": text} for n, text in enumerate(prompts)},
        "columns": {"prompt": {str(n): text for n, text in enumerate(prompts)}},
        "coco": {"annotations": [{"caption": t, "id": n} for n, t in enumerate(prompts)]},
    }
    return json.dumps(shapes[layout], indent=indent, ensure_ascii=indent is None)


def as_table(prompts, names, delimiter, quoting):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting)
    writer.writerow(names)
    writer.writerows([str(n) if name == "id" else text for name in names] for n, text in prompts)
    return out.getvalue()


json_texts = st.builds(
    lambda prompts, layout, indent: (as_json(prompts, layout, indent), prompts),
    prompt_lists,
    st.sampled_from(["list", "records", "wrapped", "by style", "by id", "columns", "coco"]),
    st.sampled_from([None, 1, 4]),
)
jsonl_texts = st.builds(
    lambda prompts: ("".join(json.dumps({"prompt": text}) + "\n" for text in prompts), prompts),
    prompt_lists,
)
quoted_lines = st.builds(
    lambda prompts: ("".join(f"{json.dumps(text)}\n" for text in [*prompts, "a"]), None),
    prompt_lists,
)
csv_texts = st.builds(
    lambda prompts, names, delimiter, quoting: (
        as_table(list(enumerate(prompts)), names, delimiter, quoting),
        [text.replace("\r\n", "\n").replace("\r", "\n") for text in prompts],
    ),
    prompt_lists,
    st.sampled_from([["prompt", "id"], ["id", "Caption"], ["id", "text"], ["prompt"], ["caption"]]),
    st.sampled_from([",", ";", "|"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
tsv_texts = st.builds(
    lambda prompts: (
        "id\tprompt\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(prompts)),
        prompts,
    ),
    prompt_lists.map(lambda prompts: [" ".join(text.split()) or "x" for text in prompts]),
)
yaml_texts = st.builds(
    lambda prompts, layout: (
        yaml.safe_dump(layout(prompts), sort_keys=False),
        prompts,
    ),
    prompt_lists,
    st.sampled_from(
        [
            lambda prompts: prompts,
            lambda prompts: {"prompts": prompts},
            lambda prompts: {"anime": prompts},
            lambda prompts: [{"prompt": text, "seed": 1} for text in prompts],
            lambda prompts: {f"id_{n}": {"prompt": text} for n, text in enumerate(prompts)},
        ]
    ),
)
yaml_names = st.builds(
    lambda prompts: (
        yaml.safe_dump({f"id_{n}": text for n, text in enumerate([*prompts, "x"])}),
        [*prompts, "x"],
    ),
    prompt_lists,
)
MAGIC = [b"PK\x03\x04", b"PAR1", b"\x1f\x8b\x08", b"BZh91AY&SY", b"\x89PNG\r\n", b"%PDF-1.7\n"]
binary = st.builds(lambda magic, rest: (magic + rest, None), st.sampled_from(MAGIC), st.binary())
PAGES = [
    "<!DOCTYPE html>\n<html><body>Not found</body></html>\n",
    "<html>\n<head>",
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>',
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "404: Not Found",
    "# Prompts\n\nA list of prompts.\n",
    "---\nlicense: mit\n---\n# Data\n",
    "prompts = [\n    'a cat',\n]\n",
    "{'prompt': 'a cat'}\n",
    "['a cat', 'a dog']\n",
    '{"prompt": "a "red" cat"}\n',
    '["a", NaN]\n',
    "image_name| comment_number\n1.jpg| 0\n",
    "id,description\n1,a cat\n",
    "1.jpg#0\ta cat\n1.jpg#1\ta dog\n",
    "0\ta cat\n1\ta dog\n",
    "prompt,prompt\na,b\n",
    '["a fox", "a hen",]\n',
    '[{"prompt": "a fox"},]\n',
    '// prompts\n["a fox"]\n',
    "<ul>\n<li>a fox</li>\n</ul>\n",
    '<item id="1">a fox</item>\n',
    "HTTP/1.1 200 OK\nContent-Type: text/html\n\n<html></html>\n",
    "(lp0\nVa fox\np1\na.",
    "[prompts]\nfirst = a fox\n",
    '[[prompt]]\ntext = "a fox"\n',
    "| prompt | id |\n| --- | --- |\n| a fox | 1 |\n",
    '```json\n["a"]\n```\n',
    "1\n00:00:01,000 --> 00:00:02,000\na fox\n",
    "WEBVTT\n\n00:01.000 --> 00:02.000\na fox\n",
    "\\documentclass{article}\n\\begin{document}\n",
    "INSERT INTO prompts VALUES (1,'a fox');\n",
    "#!/bin/sh\necho fox\n",
    "diff --git a/x b/x\n--- a/x\n",
    "-----BEGIN CERTIFICATE-----\nMIIB\n",
    "data:text/plain;base64,YSBmb3g=\n",
    "%!PS-Adobe-3.0\n",
]
structured = st.one_of(
    json_texts,
    jsonl_texts,
    quoted_lines,
    csv_texts,
    tsv_texts,
    yaml_texts,
    yaml_names,
    binary,
    st.sampled_from(PAGES).map(lambda page: (page, None)),
)


@pytest.mark.process
@settings(max_examples=400, deadline=None)
@given(
    structured, st.sampled_from(["p", "p.txt", "p.dat", "-"]), st.sampled_from(["", "\ufeff", "\n"])
)
def test_no_structured_text_is_ever_taken_for_prompts(tmp_path_factory, made, name, before):
    data, wanted = made
    raw = (before + data).encode() if isinstance(data, str) else data
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(raw)
    try:
        found = read_stream(io.BytesIO(raw)) if name == "-" else read_prompts(path)
    except SjdvpError as error:
        assert error.exit_code == 2
        return
    assert found.format != "txt"
    assert texts(found) == wanted


PROMPTS = [
    "a cat, a dog\na tree, a house",
    "text, logo, minimal\nposter, neon, retro",
    "1girl,solo,smile\n1boy,hat,sword",
    "[photo] of a cat\n[cat:dog:0.5] in grass",
    "[[fox]]\n[1girl]",
    "[photo]\na fox = a hen",
    "<lora:fox:0.8> a fox\n<s1> a hen",
    "<3 a heart\n1\na fox",
    "insert into a vase\n/imagine a fox",
    "{red|blue} car\n{{masterpiece}}, fox",
    '"Hello World" sign on a wall\n"Bye" in neon',
    '"a prompt in quotes"',
    '"G I G G L E" painted in thick colours\nfox',
    "Photo: a cat\nPainting: a dog",
    "Style: anime, a girl\nTitle: book",
    'A sign that says: "OPEN"\nfox',
    "- a cat\na dog",
    "a cat\n- a dog",
    "* a fox\n1. a dog",
    "<lora:detail:1> a fox\n<sks> dog",
    "#cyberpunk city\n#2 pencil",
    "# 3 apples\na cat",
    "a | b\nc | d",
    "a cat; a dog\nb; c",
    "a\tb",
    "Prompt engineering, a book cover\nfox, prompts",
    "a model in a red dress, number 5\nthe subject, a fox",
    "id card, passport photo\nlabel, sticker",
    "photo.jpg in a frame\nfox",
    "(masterpiece:1.2), fox\n((best)), cat",
    "300\n101",
    "PAR avion\nPK train\nBZ fox",
    "%YAM fox\n=SUM fox\n@home",
    "a town at dusk: rain\nkey: an old brass key",
    "The Great Pyramid, and " + "more " * 46 + "in mustard",
]


@pytest.mark.parametrize("data", PROMPTS)
def test_prompts_are_never_refused(tmp_path, data):
    for found in (read(tmp_path, "p.txt", data), read(tmp_path, "p", data + "\n")):
        assert (found.format, texts(found)) == ("txt", data.split("\n"))
    assert [p.text for p in stream_prompts(io.BytesIO(data.encode()))] == data.split("\n")


@pytest.mark.parametrize("data", [page for page in PAGES if page.strip()])
def test_txt_takes_anything_literally(tmp_path, data):
    found = read(tmp_path, "p.json", data, format="txt")
    assert texts(found) == [line for line in data.splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("name", "data", "advice"),
    [
        ("p.txt", "prompt\na cat\n", "--format tsv"),
        ("p.txt", "image, text\na street, at night\n", "--format csv if it is, else --format txt"),
        ("p.txt", "- a house # 3\n- a cat\n", "--format yaml"),
        ("p.txt", "img_1: a cat\nimg_2: a dog\n", "--format yaml"),
        ("p.txt", '"a cat",\n"a dog",\n', "--format jsonl drops them"),
        ("p.md", "a cat\n", "--format txt"),
        ("p.txt", b"caf\xe9\n", "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW"),
        ("p.txt", "a cat".encode("utf-16-le"), "iconv -f UTF-16LE"),
        ("p.txt", "a cat".encode("utf-16-be"), "iconv -f UTF-16BE"),
        ("p.zip", b"PK\x03\x04 and more", "unzip -p FILE | sjdvp"),
        ("p.xlsx", b"PK\x03\x04" + b"\0" * 26 + b"[Content_Types].xml", "CSV UTF-8"),
        ("p.tar", b"a.txt" + b"\0" * 252 + b"ustar\0", "tar xf FILE"),
        ("p.zst", b"\x28\xb5\x2f\xfd rest", "zstdcat FILE |"),
        ("p.json", '{\n"prompt": "a"\n}\n{\n"prompt": "b"\n}\n', "jq -c . FILE > NEW.jsonl"),
        ("p.jsonl", "{'prompt': 'a'}\n", "json.dumps writes JSON"),
        ("p.json", '[["a", 1]]', "to_json(orient='records')"),
        ("p.json", '["a",\n"b",\n]', "JSON has no comma before ]"),
        ("p.json", '[ // all\n"b"]', "JSON has no comments"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": "b"\n', "mend it there"),
        ("p.json", '[{"prompt": "a", "id": ' + "9" * 5000 + "}]", "thousands of digits"),
        ("p.txt", "a cat".encode("utf-32"), "iconv -f UTF-32"),
        ("p.txt", "a cat".encode("utf-32-le"), "iconv -f UTF-32LE"),
        ("p.txt", "кот\nпёс\n".encode("utf-16-le"), "UTF-16: iconv -f UTF-16LE"),
        ("p.txt", "狐".encode("gb18030"), "GB18030"),
        ("p.gz", gzip.compress(gzip.compress(b"a", mtime=0), mtime=0), "zcat FILE | zcat"),
        ("p.txt", pickle.dumps(["a"], 2), "it could run anything"),
        ("p.txt", b"GIF89a\x01\0", "give a text file"),
        ("p.json", "", "it is empty"),
        ("p.yaml", "", "it is empty"),
    ],
)
def test_a_refusal_names_what_helps(tmp_path, name, data, advice):
    assert advice in refusal(tmp_path, name, data)


@pytest.mark.parametrize(
    "first", ["a cat\n", '{"prompt": "a cat"}\n', "prompt,n\na cat,1\n", "P\n"]
)
def test_a_pipe_starts_before_its_input_ends(first):
    reader, writer = os.pipe()
    got: list[str] = []
    begun = threading.Event()

    def consume() -> None:
        with os.fdopen(reader, "rb") as stream:
            for prompt in stream_prompts(stream):
                got.append(prompt.text)
                begun.set()

    thread = threading.Thread(target=consume)
    thread.start()
    for byte in first.encode():
        os.write(writer, bytes([byte]))
    assert begun.wait(5)
    os.close(writer)
    thread.join(5)
    assert got == ["P" if first == "P\n" else "a cat"]


def test_a_suffix_decides_only_where_the_text_does_not(tmp_path):
    assert read(tmp_path, "p.csv", '{"prompt": "a"}\n').format == "jsonl"
    assert read(tmp_path, "p.json", '{"prompt": "a"}\n{"prompt": "b"}\n').format == "jsonl"
    assert read(tmp_path, "p.jsonl", '["a", "b"]').format == "json"
    assert read(tmp_path, "p.csv", "prompt\n[a]\n").format == "csv"
    assert texts(read(tmp_path, "p.tsv", 'Prompt\n"a"\n')) == ['"a"']
    assert texts(read(tmp_path, "p.yaml", "- a # b\n")) == ["a"]
    assert read(tmp_path, "p", "a\n", format="txt").format == "txt"
    assert ReadOptions().format == "auto"


def test_a_text_that_was_read_in_a_wrong_encoding_before_is_warned_of(tmp_path):
    misread = "a café".encode().decode("latin-1")
    (note,) = read(tmp_path, "p.txt", f"a fox\n{misread}\n").notes
    assert note == f"row 1 was once read in a wrong encoding: {misread}"
    assert read(tmp_path, "p.txt", "a café\nÃ la carte\n").notes == ()


def test_a_link_to_nothing_in_a_folder_is_not_passed_over(tmp_path):
    (tmp_path / "a.txt").write_text("a fox")
    (tmp_path / "b.txt").symlink_to("gone")
    with pytest.raises(SjdvpError, match="No such file"):
        read_prompts(tmp_path)


def test_a_block_of_yaml_has_no_line_end_after_it(tmp_path):
    found = read(tmp_path, "p.yaml", "- |\n  a fox\n  in snow\n- >\n  a hen\n")
    assert texts(found) == ["a fox\nin snow", "a hen"]
