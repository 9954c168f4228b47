"""Rows that ask for their own CFG scale, negative prompt or size, in one batch with others."""

from dataclasses import replace

import pytest

from sjdvp.engine.engine import Engine
from sjdvp.engine.scheduler import EngineKind, Groups
from sjdvp.interfaces import ImageLayout
from sjdvp.jobs import Job
from tests.engine.conftest import DECODERS, Queue, settings, tokens_and_nfe

ROWS = [
    Job(0, 0, 5, "red dog"),
    Job(1, 0, 5, "red dog", cfg_scale=4.0),
    Job(2, 0, 5, "red dog", cfg_scale=1.0),
    Job(3, 0, 5, "red dog", negative_prompt="a blue cat on a"),
    Job(4, 0, 5, "red dog", cfg_scale=0.0),
    Job(5, 0, 6, "cat", cfg_scale=4.0, negative_prompt=""),
    Job(6, 0, 5, "red dog", size=(12, 8)),
    Job(7, 0, 7, "blue", size=(12, 8), cfg_scale=3.0),
]


def sized(model):
    """The model with sizes of two pixels a token."""

    def at_size(width, height):
        return replace(model, layout=ImageLayout(height // 2, width // 2, model.layout.vocab_size))

    return replace(model, at_size=at_size)


def groups(model, config, batch_size, made):
    def make(kind):
        made.append(kind)
        of_size = model.at_size(*kind.size) if kind.size else model
        return Engine(of_size, config, batch_size, guided=kind.guided)

    return Groups(make, config)


def generate(model, config, batch_size, jobs):
    made = []
    images = list(groups(model, config, batch_size, made).generate(Queue(jobs)))
    return sorted(images, key=lambda image: image.job.index), made


@pytest.mark.process
@pytest.mark.parametrize("cfg_scale", [1.0, 2.0])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_mixed_batch_gives_the_images_of_each_row_alone(model, decoder, cfg_scale):
    model, config = sized(model), settings(decoder, cfg_scale=cfg_scale)
    together, made = generate(model, config, 4, ROWS)
    assert all(image.error is None for image in together)
    assert {kind.size for kind in made} == {None, (12, 8)}
    alone = [generate(model, config, 1, [job])[0][0] for job in ROWS]
    assert tokens_and_nfe(together) == tokens_and_nfe(alone)
    assert [image.image_HWC.shape[:2] for image in together] == [(8, 10)] * 6 + [(8, 12)] * 2
    digests = [image.stats["token_sha256"] for image in together]
    same = {(0, 2), (0, 3), (2, 3)} if cfg_scale == 1 else set()  # without guidance
    assert all(
        (digests[i] == digests[j]) == ((i, j) in same) for i in range(6) for j in range(i + 1, 6)
    )


def test_the_engine_of_a_row_depends_on_row_and_settings_alone():
    plain, guided = settings(cfg_scale=1), settings(cfg_scale=2)
    assert [EngineKind.of(job, plain).guided for job in ROWS[:3]] == [False, True, False]
    assert all(EngineKind.of(job, guided).guided for job in ROWS)


@pytest.mark.process
def test_one_engine_for_each_kind_while_rows_of_a_kind_stay_together(model):
    jobs = [ROWS[0], ROWS[2], None, ROWS[1], ROWS[6], None, ROWS[7], ROWS[3]]
    images, made = generate(sized(model), settings(), 2, jobs)
    assert made == [(None, True), ((12, 8), True), (None, True)]
    assert len(images) == 6


def test_a_size_that_the_model_does_not_have_fails_alone(model):
    jobs = [Job(0, 0, 1, "cat"), Job(1, 0, 2, "cat", size=(64, 64)), Job(2, 0, 3, "dog")]
    images = sorted(
        Engine(model, settings(), 2).generate(Queue(jobs)), key=lambda image: image.job.index
    )
    assert [image.error is None for image in images] == [True, False, True]
    assert "this model generates 10x8" in images[1].error["message"]
