import pytest

from sjdvp.errors import ConfigError
from sjdvp.runs.sharding import (
    Selection,
    Shard,
    image_seed,
    new_run_seed,
    parse_indices,
    parse_shard,
    rank,
)


def array(task: int, first: int, count: int, step: int = 1) -> dict[str, str]:
    values = {"ID": task, "MIN": first, "COUNT": count, "STEP": step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def test_shards_cover_every_row_once():
    for count in (1, 2, 5):
        owners = [[s for s in range(count) if Shard(s, count).takes(row)] for row in range(23)]
        assert all(len(owner) == 1 for owner in owners)


@pytest.mark.parametrize(
    ("text", "environ", "shard"),
    [
        ("3/8", {}, Shard(3, 8)),
        ("auto", {}, Shard(0, 1)),
        ("auto", {"RANK": "2", "WORLD_SIZE": "4"}, Shard(2, 4)),
        ("auto", {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, Shard(1, 2)),
        (
            "auto",
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"},
            Shard(0, 1),
        ),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "7",
                "SLURM_ARRAY_TASK_MIN": "3",
                "SLURM_ARRAY_TASK_COUNT": "5",
                "SLURM_ARRAY_TASK_STEP": "2",
            },
            Shard(2, 5),
        ),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "1",
                "SLURM_ARRAY_TASK_COUNT": "2",
                "SLURM_PROCID": "2",
                "SLURM_NTASKS": "3",
            },
            Shard(5, 6),
        ),
        (
            "auto",
            {"RANK": "3", "WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
            Shard(3, 4),
        ),
    ],
)
def test_shard_is_read(text, environ, shard):
    assert parse_shard(text, environ) == shard


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        *((text, {}) for text in ("", "3", "8/8", "-1/4", "a/b", "1/0", "1/2/3", "\u0661/4")),
        ("auto", {"RANK": "x", "WORLD_SIZE": "4"}),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "9",
                "SLURM_ARRAY_TASK_MIN": "3",
                "SLURM_ARRAY_TASK_COUNT": "2",
            },
        ),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "4",
                "SLURM_ARRAY_TASK_MIN": "3",
                "SLURM_ARRAY_TASK_COUNT": "3",
                "SLURM_ARRAY_TASK_STEP": "2",
            },
        ),
    ],
)
def test_bad_shards_are_refused(text, environ):
    with pytest.raises(ConfigError):
        parse_shard(text, environ)


def test_rank():
    assert rank({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}) == 3
    assert rank({}) == 0


def test_selection():
    chosen = Selection(parse_indices("3, 10-12"), limit=12)
    assert [row for row in range(30) if chosen.takes(row)] == [3, 10, 11]
    assert chosen.end == 12
    assert Selection().end is None
    assert Selection(parse_indices("3,5")).end == 6


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "5-3", "1,,2", "1.5"])
def test_bad_indices_are_refused(text):
    with pytest.raises(ConfigError, match="--indices"):
        parse_indices(text)


def test_seeds_are_a_fixed_function_without_collisions():
    seeds = {
        image_seed(run, index, sample)
        for run in range(3)
        for index in range(300)
        for sample in range(3)
    }
    assert len(seeds) == 3 * 300 * 3
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert image_seed(0, 0, 0) == 617863238189767  # a change here changes every image
    assert 0 <= new_run_seed() < 2**32
