"""Warnings of truncated prompts."""

from sjdvp.runs.summary import TruncationWarnings


def warnings(rows):
    heard = []
    prompts = TruncationWarnings(heard.append)
    for row in rows:
        prompts.add(row)
    prompts.close()
    return [note.message for note in heard]


def test_once_a_row():
    rows = [{"index": i, "truncated": i == 3} for i in (2, 3, 3, 4)]
    assert warnings(rows) == ["the prompt in row 3 is longer than the text limit: truncated"]


def test_many_are_counted():
    told = warnings({"index": i // 2, "truncated": True} for i in range(80))
    assert len(told) == 7
    assert told[4].startswith("the prompt in row 4 ")
    assert told[5:] == [
        "more prompts are truncated: their number follows at the end",
        "40 prompts longer than the text limit: truncated",
    ]
