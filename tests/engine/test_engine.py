"""The engine on a tiny model: same images whatever the batch, plain sampling token for token, failures that stay alone."""

import itertools
from dataclasses import replace

import pytest
import torch

from sjdvp.config import RunConfig, RunSettings, SamplingConfig, from_table
from sjdvp.engine.engine import Engine
from sjdvp.engine.model_runner import ModelRunner
from sjdvp.engine.scheduler import Slots, arrivals
from sjdvp.errors import PromptError
from sjdvp.jobs import Job
from sjdvp.models.device_map import DeviceMap
from sjdvp.models.generic import load
from sjdvp.presets import PRESETS
from tests.engine.tiny import save_tiny_model

PROMPTS = [
    "red dog",
    "a blue cat on red",
    "",
    "dog",
    "on a a a a a a a a",
    "cat",
    "unknown words here",
]
CPU = torch.device("cpu")


class Jobs:
    """Gives jobs one after another; a None among them is a moment without news."""

    def __init__(self, jobs):
        self.jobs = list(jobs)

    def take(self, *, wait):
        while wait and self.jobs and self.jobs[0] is None:
            self.jobs.pop(0)
        return self.jobs.pop(0) if self.jobs else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return load(folder, DeviceMap(CPU), torch.float32)


def settings(decoder="sjd", window=6, cfg_scale=2.0, **more):
    table = {"preset": decoder, "window": window, **PRESETS[decoder], **more}
    run = RunConfig(sampling=SamplingConfig(cfg_scale=cfg_scale))
    return replace(run, decoder=from_table(type(run.decoder), table, "decoder"))


def generate(model, config, batch_size, jobs=None):
    jobs = (
        [Job(i, 0, 100 + i, prompt) for i, prompt in enumerate(PROMPTS)] if jobs is None else jobs
    )
    images = {
        image.job.index: image for image in Engine(model, config, batch_size).generate(Jobs(jobs))
    }
    return [images[index] for index in sorted(images)]


@pytest.mark.parametrize("cfg_scale", [1.0, 2.0])
@pytest.mark.parametrize("decoder", ["ar", "sjd", "coupled-vp", "same-noise"])
def test_images_do_not_depend_on_the_batch_size(model, decoder, cfg_scale):
    one, *others = (
        generate(model, settings(decoder, cfg_scale=cfg_scale), batch_size)
        for batch_size in (1, 4, 8)
    )
    for other in others:
        for a, b in zip(one, other, strict=True):
            assert (a.image_HWC == b.image_HWC).all()
            assert (a.stats["token_sha256"], a.stats["nfe"]) == (
                b.stats["token_sha256"],
                b.stats["nfe"],
            )


WAYS = list(itertools.product(["independent", "coupled", "gumbel"], ["none", "adaptive"], [1, 3]))


@pytest.mark.parametrize(("drafter", "prediction", "batch_size"), WAYS)
def test_same_noise_is_ar_token_for_token(folder, drafter, prediction, batch_size):
    model = load(folder, DeviceMap(CPU), torch.float64)
    plain = generate(model, settings("ar"), 1)
    fast = generate(
        model,
        settings("same-noise", drafter=drafter, prediction={"kind": prediction, "rises": 1}),
        batch_size,
    )
    assert [p.stats["token_sha256"] for p in plain] == [p.stats["token_sha256"] for p in fast]
    assert sum(p.stats["nfe"] for p in fast) < sum(p.stats["nfe"] for p in plain)


@pytest.mark.parametrize("cfg_scale", [1.0, 3.0])
def test_windowed_forward_equals_the_whole_sequence_at_once(folder, cfg_scale):
    """Slots at different places, with rejected drafts left in the cache, against transformers without any cache."""
    model = load(folder, DeviceMap(CPU), torch.float64)
    forward = ModelRunner(model, 2, 3, cfg_scale)
    prompts = [model.prompt("red dog on a blue cat"), model.prompt("cat")]
    tokens = torch.randint(24, (2, 20), generator=torch.Generator().manual_seed(3))
    for row, prompt in enumerate(prompts):
        forward.prefill(row, prompt)
    start = torch.tensor([[1], [5]])
    for first in (start - 1, start):  # the first pass writes drafts that the second overwrites
        pos = first + torch.arange(3)
        logits = forward(tokens.gather(1, pos) if first is start else torch.zeros_like(pos), pos)
        if first is not start:
            for row in range(2):  # what lies before the window must be there
                for place in range(int(start[row])):
                    forward(
                        tokens[:, place : place + 1].expand(2, 3),
                        torch.full((2, 1), place) + torch.arange(3),
                    )
    for row, prompt in enumerate(prompts):
        for w in range(3):
            upto = tokens[row, : int(start[row]) + w + 1]
            branches = [
                whole(model, branch.embeds_PD, upto) for branch in (prompt.cond, prompt.uncond)
            ]
            wanted = branches[1] + cfg_scale * (branches[0] - branches[1])
            assert torch.allclose(logits[row, w], wanted, atol=1e-9)


def whole(model, prompt_PD, tokens):
    x = torch.cat([prompt_PD, model.embed(tokens[None], torch.arange(len(tokens))[None])[0]])[None]
    n = x.shape[1]
    slots = torch.arange(n)[None]
    hidden = model.hidden(
        x, slots, torch.ones(n, n, dtype=torch.bool).tril()[None, None], model.new_cache(1, n)
    )
    return model.logits(hidden)[0, -1]


def test_a_row_that_breaks_fails_alone(model):
    healthy = generate(model, settings(), 3)
    original = model.prompt

    def poisoned(text):
        made = original(text)
        return (
            replace(made, cond=replace(made.cond, embeds_PD=made.cond.embeds_PD * float("nan")))
            if text == "dog"
            else made
        )

    sick = generate(replace(model, prompt=poisoned), settings(), 3)
    for a, b in zip(healthy, sick, strict=True):
        if a.job.prompt == "dog":
            assert (
                b.image_HWC is None
                and "not finite" in b.error["message"]
                and not b.stats.keys() & FIGURES
            )
        else:
            assert a.stats["token_sha256"] == b.stats["token_sha256"]


FIGURES = {
    "nfe",
    "image_tokens",
    "tokens_per_nfe",
    "drafted",
    "accepted",
    "accept_rate",
    "accept_hist",
    "accept_map",
    "prediction",
}


def test_a_long_prompt_is_cut_and_said_or_refused(model):
    cut = generate(model, settings(), 2)
    assert [p.stats["truncated"] for p in cut] == [len(prompt.split()) > 6 for prompt in PROMPTS]
    strict = replace(settings(), run=RunSettings(on_long_prompt="error"))
    refused = generate(model, strict, 2)
    assert [p.error is not None for p in refused] == [len(prompt.split()) > 6 for prompt in PROMPTS]
    assert all(
        p.error is None or (not p.stats["truncated"] and not p.stats.keys() & FIGURES)
        for p in refused
    )


def test_a_prompt_that_the_backbone_refuses_fails_alone(model):
    def strict(text):
        if text == "cat":
            raise PromptError("no cats", "ask for a dog")
        return model.prompt(text)

    images = generate(replace(model, prompt=strict), settings(), 2)
    assert [p.error is not None for p in images] == [prompt == "cat" for prompt in PROMPTS]
    assert next(p.error for p in images if p.error) == {
        "type": "ImageError",
        "message": "no cats",
        "hint": "ask for a dog",
    }


def test_jobs_that_arrive_late_are_drawn_the_same(model):
    jobs = [Job(i, 0, 100 + i, prompt) for i, prompt in enumerate(PROMPTS)]
    late = list(itertools.chain.from_iterable((job, None, None) for job in jobs))
    a, b = generate(model, settings(), 2), generate(model, settings(), 2, late)
    assert [p.stats["token_sha256"] for p in a] == [p.stats["token_sha256"] for p in b]


def test_the_stats_add_up(model):
    for image in generate(model, settings("sjdvp"), 3):
        stats = image.stats
        assert stats["image_tokens"] == 20 and len(stats["accept_map"]) == 20
        assert (
            sum(k * n for k, n in enumerate(stats["accept_hist"])) == 19
            and sum(stats["accept_hist"]) == stats["nfe"]
        )
        assert stats["accept_map"].count("1") == stats["accepted"]
        assert stats["latency_s"] >= stats["prefill_s"] + stats["decode_s"]
        assert 0 <= stats["prediction"]["tv_predicted"] <= 1


def test_rows_are_occupied_and_waited_for_as_asked():
    rows = Slots(3)
    rows.sit(1, "image")
    assert rows.free() == [0, 2] and rows.busy() == [(1, "image")]
    asked = []

    class Source:
        def take(self, *, wait):
            asked.append(wait)
            return Job(0, 0, 0, "") if len(asked) < 2 else None

    assert [row for row, _ in arrivals(Source(), rows.free(), wait=True)] == [0]
    assert asked == [True, False]
    rows.leave(1)
    assert rows.free() == [0, 1, 2]
