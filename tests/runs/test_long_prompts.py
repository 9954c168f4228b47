"""Warnings of truncated prompts."""

from sjdvp.runs.long_prompts import LongPrompts


def warnings(rows):
    heard = []
    prompts = LongPrompts(heard.append)
    for row in rows:
        prompts.hear(row)
    prompts.close()
    return [note.message for note in heard]


def test_once_a_row():
    rows = [{"index": i, "truncated": i == 3} for i in (2, 3, 3, 4)]
    assert warnings(rows) == ["prompt row 3 is longer than the text limit: truncated"]


def test_many_are_counted():
    told = warnings({"index": i // 2, "truncated": True} for i in range(80))
    assert len(told) == 7
    assert told[4].startswith("prompt row 4 ")
    assert told[5:] == [
        "further prompts that are truncated are counted, not listed",
        "40 prompts are longer than the text limit: truncated",
    ]
