"""The engine on a tiny model: same pictures whatever the batch, plain sampling token for token, failures that stay alone."""

import itertools
from dataclasses import replace

import pytest
import torch

from sjdvp.backbones.generic import load
from sjdvp.backbones.place import Place
from sjdvp.config import RunConfig, RunSettings, SamplingConfig, from_table
from sjdvp.engine.engine import Engine
from sjdvp.engine.forward import Forward
from sjdvp.engine.scheduler import Rows, arrivals
from sjdvp.errors import PromptError
from sjdvp.jobs import Job
from sjdvp.presets import PRESETS
from tests.engine.tiny import save_tiny_model

PROMPTS = ["red dog", "a blue cat on red", "", "dog", "on a a a a a a a a", "cat", "unknown words here"]
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
def backbone(folder):
    return load(folder, Place(CPU), torch.float32)


def settings(decoder="sjd", window=6, cfg_scale=2.0, **more):
    table = {"preset": decoder, "window": window, **PRESETS[decoder], **more}
    run = RunConfig(sampling=SamplingConfig(cfg_scale=cfg_scale))
    return replace(run, decoder=from_table(type(run.decoder), table, "decoder"))


def paint(backbone, config, n_rows, jobs=None):
    jobs = [Job(i, 0, 100 + i, prompt) for i, prompt in enumerate(PROMPTS)] if jobs is None else jobs
    pictures = {picture.job.index: picture for picture in Engine(backbone, config, n_rows).paint(Jobs(jobs))}
    return [pictures[index] for index in sorted(pictures)]


@pytest.mark.parametrize("cfg_scale", [1.0, 2.0])
@pytest.mark.parametrize("decoder", ["ar", "sjd", "coupled-vp", "same-noise"])
def test_pictures_do_not_depend_on_the_batch_size(backbone, decoder, cfg_scale):
    one, *others = (paint(backbone, settings(decoder, cfg_scale=cfg_scale), n_rows) for n_rows in (1, 4, 8))
    for other in others:
        for a, b in zip(one, other, strict=True):
            assert (a.pixels_HWC == b.pixels_HWC).all()
            assert (a.stats["token_sha256"], a.stats["nfe"]) == (b.stats["token_sha256"], b.stats["nfe"])


WAYS = list(itertools.product(["independent", "coupled", "gumbel"], ["none", "adaptive"], [1, 3]))


@pytest.mark.parametrize(("drafter", "prior", "n_rows"), WAYS)
def test_same_noise_is_ar_token_for_token(folder, drafter, prior, n_rows):
    backbone = load(folder, Place(CPU), torch.float64)
    plain = paint(backbone, settings("ar"), 1)
    fast = paint(backbone, settings("same-noise", drafter=drafter, prior={"kind": prior, "rises": 1}), n_rows)
    assert [p.stats["token_sha256"] for p in plain] == [p.stats["token_sha256"] for p in fast]
    assert sum(p.stats["nfe"] for p in fast) < sum(p.stats["nfe"] for p in plain)


@pytest.mark.parametrize("cfg_scale", [1.0, 3.0])
def test_windowed_forward_equals_the_whole_sequence_at_once(folder, cfg_scale):
    """Rows at different places, with rejected drafts left in the cache, against transformers without any cache."""
    backbone = load(folder, Place(CPU), torch.float64)
    forward = Forward(backbone, 2, 3, cfg_scale)
    prompts = [backbone.prompt("red dog on a blue cat"), backbone.prompt("cat")]
    codes = torch.randint(24, (2, 20), generator=torch.Generator().manual_seed(3))
    for row, prompt in enumerate(prompts):
        forward.prefill(row, prompt)
    start = torch.tensor([[1], [5]])
    for first in (start - 1, start):  # the first pass writes drafts that the second overwrites
        pos = first + torch.arange(3)
        logits = forward(codes.gather(1, pos) if first is start else torch.zeros_like(pos), pos)
        if first is not start:
            for row in range(2):  # what lies before the window must be there
                for place in range(int(start[row])):
                    forward(codes[:, place : place + 1].expand(2, 3), torch.full((2, 1), place) + torch.arange(3))
    for row, prompt in enumerate(prompts):
        for w in range(3):
            upto = codes[row, : int(start[row]) + w + 1]
            branches = [whole(backbone, branch.embeds_PD, upto) for branch in (prompt.cond, prompt.uncond)]
            wanted = branches[1] + cfg_scale * (branches[0] - branches[1])
            assert torch.allclose(logits[row, w], wanted, atol=1e-9)


def whole(backbone, prompt_PD, codes):
    x = torch.cat([prompt_PD, backbone.embed(codes[None], torch.arange(len(codes))[None])[0]])[None]
    n = x.shape[1]
    slots = torch.arange(n)[None]
    hidden = backbone.hidden(x, slots, torch.ones(n, n, dtype=torch.bool).tril()[None, None], backbone.new_cache(1, n))
    return backbone.logits(hidden)[0, -1]


def test_a_row_that_breaks_fails_alone(backbone):
    healthy = paint(backbone, settings(), 3)
    original = backbone.prompt

    def poisoned(text):
        made = original(text)
        return replace(made, cond=replace(made.cond, embeds_PD=made.cond.embeds_PD * float("nan"))) if text == "dog" else made

    sick = paint(replace(backbone, prompt=poisoned), settings(), 3)
    for a, b in zip(healthy, sick, strict=True):
        if a.job.prompt == "dog":
            assert b.pixels_HWC is None and "not finite" in b.error["message"] and not b.stats.keys() & FIGURES
        else:
            assert a.stats["token_sha256"] == b.stats["token_sha256"]


FIGURES = {"nfe", "image_tokens", "tokens_per_nfe", "drafted", "accepted", "accept_rate", "accept_hist", "accept_map", "prior"}


def test_a_long_prompt_is_cut_and_said_or_refused(backbone):
    cut = paint(backbone, settings(), 2)
    assert [p.stats["truncated"] for p in cut] == [len(prompt.split()) > 6 for prompt in PROMPTS]
    strict = replace(settings(), run=RunSettings(on_long_prompt="error"))
    refused = paint(backbone, strict, 2)
    assert [p.error is not None for p in refused] == [len(prompt.split()) > 6 for prompt in PROMPTS]
    assert all(p.error is None or (not p.stats["truncated"] and not p.stats.keys() & FIGURES) for p in refused)


def test_a_prompt_that_the_backbone_refuses_fails_alone(backbone):
    def strict(text):
        if text == "cat":
            raise PromptError("no cats", "ask for a dog")
        return backbone.prompt(text)

    pictures = paint(replace(backbone, prompt=strict), settings(), 2)
    assert [p.error is not None for p in pictures] == [prompt == "cat" for prompt in PROMPTS]
    assert next(p.error for p in pictures if p.error) == {"type": "ImageError", "message": "no cats", "hint": "ask for a dog"}


def test_jobs_that_arrive_late_are_drawn_the_same(backbone):
    jobs = [Job(i, 0, 100 + i, prompt) for i, prompt in enumerate(PROMPTS)]
    late = list(itertools.chain.from_iterable((job, None, None) for job in jobs))
    a, b = paint(backbone, settings(), 2), paint(backbone, settings(), 2, late)
    assert [p.stats["token_sha256"] for p in a] == [p.stats["token_sha256"] for p in b]


def test_the_stats_add_up(backbone):
    for picture in paint(backbone, settings("sjdvp"), 3):
        stats = picture.stats
        assert stats["image_tokens"] == 20 and len(stats["accept_map"]) == 20
        assert sum(k * n for k, n in enumerate(stats["accept_hist"])) == 19 and sum(stats["accept_hist"]) == stats["nfe"]
        assert stats["accept_map"].count("1") == stats["accepted"]
        assert stats["latency_s"] >= stats["prefill_s"] + stats["decode_s"]
        assert 0 <= stats["prior"]["tv_prior"] <= 1


def test_rows_are_seated_and_waited_for_as_asked():
    rows = Rows(3)
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
