"""The sums of the observer against plain loops; and observing changes no token."""

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace

import pytest
import torch

from sjdvp import rng
from sjdvp.analysis.metrics import PREDICTIONS, change, metrics_of
from sjdvp.analysis.observer import Observer
from sjdvp.config import PredictionConfig, SamplingConfig
from sjdvp.decode.step import decode_step
from sjdvp.sampling import to_probs
from tests.decode.helpers import SPARSE, TOP_3, TableModel, decoder, run

S = 9
MODEL = TableModel(vocab_size=3, forced=[i % 4 == 3 for i in range(S)], stride=4, sharpness=1.0)
SEEDS = list(range(20))


@dataclass
class SlowStatistics:
    """Keeps each distribution of each position and slot, and goes through them one by one."""

    prediction: PredictionConfig
    lives: dict = field(
        default_factory=lambda: defaultdict(list)
    )  # (row, position) -> its distributions so far, oldest first
    sums: dict = field(default_factory=lambda: defaultdict(float))

    def see(self, the_decoder, before, logits, after) -> None:
        for row in range(len(before.n_B)):
            if before.nfe_B[row] == 0:
                self.lives = defaultdict(
                    list, {key: life for key, life in self.lives.items() if key[0] != row}
                )
            n, n_after = int(before.n_B[row]), int(after.n_B[row])
            for w in range(the_decoder.window if n < S else 0):
                if n + w >= S:
                    break
                if not MODEL.forced[n + w]:
                    committed = n + w < n_after
                    is_draft = w < the_decoder.window - 1
                    self.sums["tested", w] += committed and is_draft
                    self.sums["accepted", w] += committed and bool(after.accept_map_BS[row, n + w])
                    distribution = to_probs(
                        logits[row : row + 1, w : w + 1],
                        torch.tensor([[False]]),
                        the_decoder.sampling,
                    )[0, 0].tolist()
                    token = int(after.tokens_BS[row, n + w]) if n + w < n_after else None
                    self.see_position(
                        self.lives[row, n + w],
                        distribution,
                        w,
                        token,
                        bool(after.accept_map_BS[row, n + w]),
                    )
                    if w < the_decoder.window - 1:
                        q = the_decoder.form.dense(before.draft_probs_BWY)[row, w].tolist()
                        self.sums["drafts", w] += 1
                        self.sums["overlap", w] += sum(map(min, q, distribution))
                    self.lives[row, n + w].append(distribution)

    def see_position(self, life, distribution, w, token, accepted) -> None:
        add = self.sums
        if token is not None:
            add["tokens"] += 1
            add["log_likelihood"] += math.log(distribution[token])
            add["entropy"] -= sum(p * math.log(p) for p in distribution)
        if not life:
            return
        last = life[-1]
        top = sorted(range(len(distribution)), key=lambda x: -last[x])[
            : self.prediction.top_k or None
        ]
        for x in top:
            for n in range(5):
                if n < len(life) and all(life[-1 - i][x] > life[-2 - i][x] for i in range(n)):
                    again = distribution[x] > last[x]
                    add["had", n] += 1
                    add["again", n] += again
                    add["mass", n] += last[x]
                    add["again mass", n] += last[x] * again
        add["seen", w] += 1
        for name, predicted in self.predictions(life, top).items():
            far = sum(abs(a - b) for a, b in zip(predicted, distribution, strict=True)) / 2
            add["far", name, w] += far
            add["far at commit", name] += far * (token is not None)
        if token is not None:
            every = [*life, distribution]
            add["committed"] += 1
            add["accepted total"] += accepted
            add["life"] += distribution[token] > life[0][token]
            add["accepted grew" if accepted else "sampled grew"] += (
                distribution[token] > last[token]
            )
            for n in range(1, 5):
                if len(life) >= n:
                    add["could", n] += 1
                    add["grew", n] += all(
                        every[-1 - i][token] > every[-2 - i][token] for i in range(n)
                    )

    def predictions(self, life, top):
        """The formulae of the design, written out; with the floor, the clip and the mass of the top
        tokens kept.
        """
        c, last, past = self.prediction, life[-1], life[-2::-1][: self.prediction.history]
        weights = [c.decay**lag for lag in range(len(past))]
        weights = [weight / sum(weights) for weight in weights]

        def tilted(base, gain):
            new = {x: base[x] * math.exp(min(max(gain[x], -c.clip), c.clip)) for x in top}
            mass = sum(last[x] for x in top) / sum(new.values())
            return [new[x] * mass if x in new else p for x, p in enumerate(last)]

        rose = {
            x: len(past) >= c.rises
            and all(life[-1 - i][x] > life[-2 - i][x] for i in range(c.rises))
            for x in top
        }
        mean = {
            x: sum(
                weight * distribution[x] for weight, distribution in zip(weights, past, strict=True)
            )
            for x in top
        }
        log_mean = {
            x: sum(
                weight * math.log(distribution[x] + 1e-6)
                for weight, distribution in zip(weights, past, strict=True)
            )
            for x in top
        }
        gain = {x: math.log((last[x] + 1e-6) / (mean[x] + 1e-6)) * rose[x] for x in top}
        moved = {x: (math.log(last[x] + 1e-6) - log_mean[x]) * bool(past) for x in top}
        found = {"plain": last, "growth only": tilted([1.0] * len(last), gain)}
        found |= {
            f"published {beta:g}": tilted(last, {x: beta * gain[x] for x in top})
            for beta in (0.5, 1)
        }
        found |= {
            f"momentum {pull:g}": tilted(last, {x: pull * moved[x] for x in top})
            for pull in (0.25, -0.25, -0.5)
        }
        return found


def watched(
    drafter="coupled", prediction_kind="adaptive", window=4, top_k=0, rises=2, batch_size=3
):
    """Decode, watched by both; returns what each found, and the tokens."""
    the_decoder = decoder(
        drafter, "above", prediction_kind, window, model=MODEL, sampling=SamplingConfig()
    )
    prediction = PredictionConfig(rises=rises, history=3, top_k=top_k)
    watch = Observer(the_decoder, prediction, batch_size, torch.float64, torch.device("cpu"))
    slow = SlowStatistics(prediction)

    def step(the_decoder, before, logits):
        after = decode_step(the_decoder, before, logits)
        watch.see(before, logits, after)
        slow.see(the_decoder, before, logits, after)
        return after

    tokens, nfe = run(MODEL, the_decoder, SEEDS, batch_size, torch.float64, step)
    return metrics_of({(seed, 0): watch.take(seed) for seed in SEEDS}), slow.sums, tokens, nfe


@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize(
    ("drafter", "prediction_kind", "window", "rises"),
    [("coupled", "adaptive", 4, 2), ("independent", "none", 7, 1)],
)
def test_sums_are_those_of_the_loops(drafter, prediction_kind, window, top_k, rises):
    found, slow, _, _ = watched(drafter, prediction_kind, window, top_k, rises)
    near = pytest.approx
    assert found.growth.tokens == slow["committed"] > 20
    assert found.growth.over_window == near(slow["life"] / slow["committed"])
    assert found.growth.in_a_row == near(
        [slow["grew", n] / slow["could", n] if slow["could", n] else None for n in range(1, 5)]
    )
    assert found.growth.last_iteration == found.growth.in_a_row[0]
    assert found.growth.last_iteration_accepted == near(
        slow["accepted grew"] / slow["accepted total"]
    )
    assert found.growth.last_iteration_sampled == near(
        slow["sampled grew"] / (slow["committed"] - slow["accepted total"])
    )
    for rise in found.rises:
        n = rise.rises
        assert rise.tokens == slow["had", n]
        assert (rise.again, rise.again_by_mass) == near(
            (slow["again", n] / slow["had", n], slow["again mass", n] / slow["mass", n])
            if slow["had", n]
            else (None, None)
        )
    seen = [slow["seen", w] for w in range(window)]
    for distance in found.distances:
        far = [slow["far", distance.distribution, w] for w in range(window)]
        assert distance.everywhere == near(sum(far) / sum(seen))
        assert distance.at_commit == near(
            slow["far at commit", distance.distribution] / slow["committed"]
        )
        assert distance.by_position == near(
            [a / b if b else None for a, b in zip(far, seen, strict=True)]
        )
    assert [distance.distribution for distance in found.distances] == list(PREDICTIONS)
    tested = [slow["tested", w] for w in range(window)]
    assert list(found.window.tested) == tested
    assert found.window.accepted == near(
        [slow["accepted", w] / tested[w] if tested[w] else None for w in range(window)]
    )
    assert found.window.overlap == near(
        [
            slow["overlap", w] / slow["drafts", w] if slow["drafts", w] else None
            for w in range(window)
        ]
    )
    assert found.fidelity.tokens == slow["tokens"] == len(SEEDS) * (S - 1 - sum(MODEL.forced))
    assert found.fidelity.log_likelihood == near(slow["log_likelihood"] / slow["tokens"])
    assert found.fidelity.entropy == near(slow["entropy"] / slow["tokens"])


def test_log_likelihood_is_that_of_one_forward_over_the_finished_tokens():
    found, _, tokens, _ = watched()
    total = 0.0
    for i in range(1, S):
        if not MODEL.forced[i]:
            distribution = MODEL.logits(tokens, torch.full((len(tokens),), i)).log_softmax(-1)
            total += float(distribution.gather(-1, tokens[:, i : i + 1]).sum())
    assert found.fidelity.log_likelihood == pytest.approx(total / found.fidelity.tokens)


def test_watching_changes_nothing():
    plain = run(
        MODEL,
        decoder("coupled", "above", "adaptive", 4, sampling=SamplingConfig(), model=MODEL),
        SEEDS,
        3,
        torch.float64,
    )
    *_, tokens, nfe = watched()
    assert torch.equal(tokens, plain[0]) and torch.equal(nfe, plain[1])


def test_sums_are_the_same_when_distributions_are_sparse():
    model = replace(MODEL, vocab_size=4)

    def seen(form):
        parts = "coupled", "above", "published", 4, "rejection"
        the_decoder = decoder(*parts, TOP_3, model, form)
        cpu = torch.device("cpu")
        watch = Observer(the_decoder, PredictionConfig(history=3), 3, torch.float64, cpu)

        def step(the_decoder, before, logits):
            after = decode_step(the_decoder, before, logits)
            watch.see(before, logits, after)
            return after

        run(model, the_decoder, SEEDS, 3, torch.float64, step)
        found = metrics_of({(seed, 0): watch.take(seed) for seed in SEEDS})
        return (*found.window.overlap[:-1], *found.window.accepted[:-1], found.growth.over_window)

    assert seen(SPARSE) == pytest.approx(seen(None))


def test_rows_do_not_matter():
    assert watched(batch_size=1)[0].rises == pytest.approx(watched(batch_size=20)[0].rises)


def test_change_pairs_the_images():
    def seen(*means):
        return {(i, 0): {"log_likelihood": 10 * mean, "tokens": 10} for i, mean in enumerate(means)}

    assert change(seen(-2, -2), seen(-1, -3)).value == pytest.approx(0)
    moved = change(seen(-2, -1, -5), seen(-2.2, -1.1))  # the third image is in one of them only
    assert (moved.value, moved.low, moved.high) == pytest.approx((-0.1, -0.1, -0.1))
    base = seen(-1)
    assert change(base, base) is None
    assert change(base, {}) is None


def test_seeds_name_the_images():
    watch = Observer(
        decoder(window=2, model=MODEL), PredictionConfig(), 1, torch.float32, torch.device("cpu")
    )
    with pytest.raises(KeyError):
        watch.take(3)
    assert int(rng.keys([3])) != int(rng.keys([4]))
