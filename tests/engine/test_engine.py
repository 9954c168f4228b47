"""The engine on a tiny model: the batch changes no image, same-noise is ar, failures stay alone."""

import itertools
import random
from dataclasses import replace

import pytest
import torch

from sjdvp.config import RunSettings
from sjdvp.engine.engine import decoding_stats
from sjdvp.engine.model_runner import ModelRunner
from sjdvp.engine.scheduler import ImageSequence, Slots, next_jobs
from sjdvp.errors import PromptError
from sjdvp.interfaces import ImageLayout
from sjdvp.jobs import Job
from tests.engine.conftest import PROMPTS, generate, jobs_for_prompts, settings, tokens_and_nfe


@pytest.mark.process
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
        assert tokens_and_nfe(one) == tokens_and_nfe(other)


WAYS = list(itertools.product(["independent", "coupled", "gumbel"], ["none", "adaptive"], [1, 3]))


@pytest.mark.process
@pytest.mark.parametrize(("drafter", "prediction", "batch_size"), WAYS)
def test_same_noise_is_ar_token_for_token(model64, drafter, prediction, batch_size):
    plain = generate(model64, settings("ar"), 1)
    fast = generate(
        model64,
        settings("same-noise", drafter=drafter, prediction={"kind": prediction, "rises": 1}),
        batch_size,
    )
    assert [p.stats["token_sha256"] for p in plain] == [p.stats["token_sha256"] for p in fast]
    assert sum(p.stats["nfe"] for p in fast) < sum(p.stats["nfe"] for p in plain)


@pytest.mark.parametrize(("scales", "interval"), [((1, 1), -1), ((3, 3), -1), ((3, 0.5), 4)])
def test_windowed_forward_pass_equals_the_whole_sequence_at_once(model64, scales, interval):
    """Sequences of different lengths, with rejected drafts in the cache, against no cache."""
    model = model64
    runner = ModelRunner(model, 2, 3, scales[0], cfg_interval=interval)
    prompts = [model.prompt("red dog on a blue cat"), model.prompt("cat")]
    tokens = torch.randint(24, (2, 20), generator=torch.Generator().manual_seed(3))
    for slot, prompt in enumerate(prompts):
        runner.prefill(slot, prompt, scales[slot])
    start = torch.tensor([[1], [5]])
    for first in (start - 1, start):  # the first pass writes drafts that the second overwrites
        pos = first + torch.arange(3)
        fed = tokens.gather(1, pos) if first is start else torch.zeros_like(pos)
        logits = runner(fed, pos)
        if first is not start:
            commit_up_to(start, tokens, runner)
    for slot, prompt in enumerate(prompts):
        for w in range(3):
            upto = tokens[slot, : int(start[slot]) + w + 1]
            cond, uncond = (
                whole(model, branch.embeds_PD, upto) for branch in (prompt.cond, prompt.uncond)
            )
            # LlamaGen: the step after token i has guidance while i <= cfg_interval.
            scale = scales[slot] if interval < 0 or len(upto) - 1 <= interval else 1
            wanted = uncond + scale * (cond - uncond)
            assert torch.allclose(logits[slot, w], wanted, atol=1e-9)


def commit_up_to(start, tokens, runner):
    """Feed what lies before the windows, so that it is in the cache."""
    for slot in range(2):
        for position in range(int(start[slot])):
            window = tokens[:, position : position + 1].expand(2, 3)
            runner(window, torch.full((2, 1), position) + torch.arange(3))


def whole(model, prompt_PD, tokens):
    x = torch.cat([prompt_PD, model.embed(tokens[None], torch.arange(len(tokens))[None])[0]])[None]
    n = x.shape[1]
    slots = torch.arange(n)[None]
    hidden = model.hidden(
        x, slots, torch.ones(n, n, dtype=torch.bool).tril()[None, None], model.new_cache(1, n)
    )
    return model.logits(hidden)[0, -1]


def test_a_sequence_that_breaks_fails_alone(model):
    healthy = generate(model, settings(), 3)
    original = model.prompt

    def poisoned(text, negative):
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
                and not b.stats.keys() & DECODING_STATS
            )
        else:
            assert a.stats["token_sha256"] == b.stats["token_sha256"]


DECODING_STATS = {
    "nfe",
    "image_tokens",
    "tokens_per_nfe",
    "drafted",
    "accepted",
    "accept_rate",
    "accept_hist",
    "accept_map",
}


def test_a_long_prompt_is_truncated_or_refused(model):
    cut = generate(model, settings(), 2)
    assert [p.stats["truncated"] for p in cut] == [len(prompt.split()) > 6 for prompt in PROMPTS]
    strict = replace(settings(), run=RunSettings(on_long_prompt="error"))
    refused = generate(model, strict, 2)
    assert [p.error is not None for p in refused] == [len(prompt.split()) > 6 for prompt in PROMPTS]
    assert all(
        p.error is None or (not p.stats["truncated"] and not p.stats.keys() & DECODING_STATS)
        for p in refused
    )


def test_a_prompt_that_the_model_refuses_fails_alone(model):
    def strict(text, negative):
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


def test_late_jobs_give_the_same_images(model):
    late = list(itertools.chain.from_iterable((job, None, None) for job in jobs_for_prompts()))
    a, b = generate(model, settings(), 2), generate(model, settings(), 2, late)
    assert tokens_and_nfe(a) == tokens_and_nfe(b)


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


def test_slots_take_jobs_and_wait_only_for_the_first():
    slots, sequence = Slots(3), ImageSequence(Job(0, 0, 0, ""), warmup=True)
    slots.assign(1, sequence)
    assert slots.free() == [0, 2] and slots.busy() == [(1, sequence)]
    asked = []

    class OneJob:
        def take(self, *, wait):
            asked.append(wait)
            return Job(0, 0, 0, "") if len(asked) < 2 else None

    assert [slot for slot, _ in next_jobs(OneJob(), slots.free(), wait=True)] == [0]
    assert asked == [True, False]
    slots.release(1)
    assert slots.free() == [0, 1, 2]


LAYOUT = ImageLayout(3, 4, 16, row_end=True)


def an_image(window, rng):
    """Decode an image by chance; return its acceptance map and what happened."""
    forced = LAYOUT.forced_at(torch.arange(LAYOUT.length)).tolist()
    accepted, n, seen = [False], 1, {"drafted": 0, "accepted": 0, "accept_hist": [0] * (window + 1)}
    while n < LAYOUT.length:
        n_drafts = min(window - 1, LAYOUT.length - n)
        passed = 0
        while passed < n_drafts and (forced[n + passed] or rng.random() < 0.6):
            seen["drafted"] += not forced[n + passed]
            seen["accepted"] += not forced[n + passed]
            passed += 1
        seen["drafted"] += passed < n_drafts
        n_new = min(passed + 1, LAYOUT.length - n)
        accepted += [w < passed for w in range(n_new)]
        seen["accept_hist"][n_new] += 1
        n += n_new
    seen["nfe"] = sum(seen["accept_hist"])
    return torch.tensor(accepted), seen


@pytest.mark.parametrize("window", [1, 2, 4, 16])
def test_the_acceptance_map_holds_every_count(window):
    for seed in range(50):
        accepted_S, seen = an_image(window, random.Random(seed))
        stats = decoding_stats(LAYOUT, window, accepted_S)
        assert {key: stats[key] for key in seen} == seen
        assert len(stats["accept_map"]) == 12 and stats["image_tokens"] == 14
