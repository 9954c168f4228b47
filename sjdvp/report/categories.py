"""Figures by the columns that came with the prompts, such as the categories of PartiPrompts."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sjdvp.report.load import Run
from sjdvp.report.metrics import Figures, figures
from sjdvp.runs.jsonl import JsonRow

_MOST_GROUPS = 40  # a column with more is no category


@dataclass(frozen=True, slots=True)
class Group:
    """The prompts of one category: how many, and each run's figures over them."""

    name: str
    prompts: int
    figures: tuple[Figures, ...]


@dataclass(frozen=True, slots=True)
class Categories:
    """One column of the prompt file, as groups."""

    column: str
    groups: tuple[Group, ...]


def categories(runs: Sequence[Run]) -> list[Categories]:
    """Return a table for each carried column that sorts the drawn prompts into a few groups."""
    extras = {index: extra for run in runs for index, extra in run.extras.items()}
    drawn = sorted({index for run in runs for index, _ in run.ok})
    found = []
    for column in dict.fromkeys(column for index in drawn for column in extras.get(index, {})):
        names = {
            index: str(value)
            for index in drawn
            if isinstance(value := extras.get(index, {}).get(column), str | int)
        }
        if 2 <= len(set(names.values())) <= min(_MOST_GROUPS, len(drawn) // 2):
            found.append(_categories(column, names, runs))
    return found


def _categories(column: str, names: dict[int, str], runs: Sequence[Run]) -> Categories:
    rows: list[defaultdict[str, list[JsonRow]]] = []
    for run in runs:
        sorted_rows: defaultdict[str, list[JsonRow]] = defaultdict(list)
        for (index, _), row in run.ok.items():
            if index in names:
                sorted_rows[names[index]].append(row)
        rows.append(sorted_rows)
    members = defaultdict(set)
    for index, name in names.items():
        members[name].add(index)
    groups = (
        Group(name, len(members[name]), tuple(figures(found[name]) for found in rows))
        for name in sorted(members)
    )
    return Categories(column, tuple(groups))
