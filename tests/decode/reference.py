"""Speculative Jacobi decoding with verification prediction, slowly: one image, one position at a
time.

The words are those of the papers: SJD (arXiv 2410.01699), SJD-VP (2603.27115), speculative sampling
(2211.17192), MC-SJD (2510.24211), fixed noise (2002.09928), LANTERN (2410.03355), GSD (2508.07747).
Probabilities are Python floats; only the random numbers and the codebook come from the library.
"""

import itertools
import math
from dataclasses import dataclass, field

import torch

from sjdvp import rng
from sjdvp.rng import Purpose


@dataclass
class Position:
    """What is remembered of one position of the image while it is in the window."""

    draft: int = 0
    q: list = field(default_factory=list)  # the distribution the draft token was sampled from
    history: list = field(default_factory=list)  # target distributions so far, newest first
    predictions: list = field(default_factory=list)  # candidates for the next one (adaptive)
    top: list = field(default_factory=list)  # the tokens at which they differ


class Image:
    """One image that is decoded with `decode`; afterwards `tokens` and `nfe` are the result."""

    def __init__(self, model, config, sampling, seed, near, codebook, sparse=False):
        self.model, self.config, self.sampling = model, config, sampling
        self.near, self.codebook = near, codebook  # of the relaxed verifiers
        self.sparse = sparse  # how the fast step stores distributions: it shows in one place
        self.key = rng.keys([seed])[0]
        self.V, self.S, self.W = model.vocab_size, len(model.forced), config.window
        self.tokens, self.nfe = [], 0
        self.errors = [0.0] * 5  # how wrong each prediction has been so far (adaptive)
        self.newest = {}  # position: its newest target distribution
        self.noise = {}  # position: its fixed noise, one exponential number for each token

    def decode(self):
        p = self.target([], 0)
        self.newest[0] = p
        self.tokens.append(self.token_of_the_model(p, 0))
        window = {i: Position() for i in range(1, 1 + self.W)}
        for i, position in window.items():
            position.q = self.initial(i, 1, p, self.tokens[0])
            position.draft = self.draft(i, position.q, None)
        while len(self.tokens) < self.S:
            window = self.iterate(window)
        return self.tokens, self.nfe

    def iterate(self, window):
        self.nfe += 1
        n = len(self.tokens)
        drafts = [window[i].draft for i in range(n, n + self.W)]
        inside = range(n, min(n + self.W, self.S))
        p = {i: self.target(self.tokens + drafts[: i - n], i) for i in inside}
        self.newest |= p

        # Verify and commit.
        accepted = 0
        while True:
            i = n + accepted
            has_draft = accepted < self.W - 1
            if has_draft and self.accepts(p[i], window[i], i):
                self.tokens.append(window[i].draft)
                accepted += 1
                if len(self.tokens) == self.S:
                    break
            else:
                self.tokens.append(self.next_token(p[i], window[i] if has_draft else None, i))
                break
        committed = [i for i in range(n, len(self.tokens)) if window[i].history]
        self.judge_predictions(window, p, committed)

        # The next window.
        after, last = {}, n + self.W - 1
        for i in range(len(self.tokens), len(self.tokens) + self.W):
            old = window.get(i)
            if i >= self.S:
                after[i] = Position()
            elif old is None:
                last_p = p.get(last, [1 / self.V] * self.V)
                last_draft = window[max(last - 1, n)].draft
                after[i] = Position(q=self.initial(i, last + 1, last_p, last_draft))
                after[i].draft = self.draft(i, after[i].q, None)
            else:
                after[i] = Position(history=[p[i], *old.history][: self.config.prediction.history])
                after[i].q = self.one_hot(i) or self.predict(after[i], p[i], old.history)
                has_draft = i < last
                after[i].draft = self.draft(i, after[i].q, old if has_draft else None)
        return after

    # Target distributions.

    def target(self, prefix, i):
        if self.model.forced[i]:
            return self.one_hot(i)
        logits = self.model.next_logits(prefix)
        if self.sampling.temperature == 0:
            best = max(range(self.V), key=lambda x: logits[x])
            return [float(x == best) for x in range(self.V)]
        logits = [logit / self.sampling.temperature for logit in logits]
        if self.sampling.top_k:
            kth = sorted(logits, reverse=True)[min(self.sampling.top_k, self.V) - 1]
            logits = [logit if logit >= kth else -math.inf for logit in logits]
        weights = [math.exp(logit - max(logits)) for logit in logits]
        return [weight / sum(weights) for weight in weights]

    def one_hot(self, i):
        """A forced position always holds token 0."""
        return [float(x == 0) for x in range(self.V)] if self.model.forced[i] else None

    # Random numbers, and sampling with them.

    def u(self, i, purpose):
        return float(rng.uniform(self.key, i, self.nfe, int(purpose)))

    def sample(self, weights, u):
        threshold, running = u * sum(weights), 0.0
        for token, weight in enumerate(weights):
            running += weight
            if running > threshold:
                return token
        raise AssertionError(weights)

    def gumbel_max(self, p, i):
        if i not in self.noise:
            tokens = torch.arange(self.V)
            self.noise[i] = rng.exponential(self.key, i, int(Purpose.GUMBEL), tokens).tolist()
        return min(range(self.V), key=lambda x: self.noise[i][x] / p[x] if p[x] else math.inf)

    # Verification.

    def token_of_the_model(self, p, i):
        if self.config.verifier == "same-noise":
            return self.gumbel_max(p, i)
        return self.sample(p, self.u(i, Purpose.RESAMPLE))

    def accepts(self, p, position, i):
        x, q = position.draft, position.q
        if self.config.verifier == "same-noise":
            return self.gumbel_max(p, i) == x
        if self.config.verifier == "lantern":
            p_x, q_x = p[x] + sum(p[y] for y in self.lenders(p, x)), q[x]
        elif self.config.verifier == "gsd":
            cluster = self.cluster(p, x)
            p_x, q_x = sum(p[y] for y in cluster), sum(q[y] for y in cluster)
        else:
            p_x, q_x = p[x], q[x]
        return self.u(i, Purpose.ACCEPT) * q_x < p_x

    def next_token(self, p, position, i):
        """The resampled token; the bonus token where there was no draft token."""
        if position is None or self.config.verifier == "same-noise":
            return self.token_of_the_model(p, i)
        if self.config.verifier == "lantern":
            used = {position.draft, *self.lenders(p, position.draft)}
            rest = [0.0 if x in used else p[x] for x in range(self.V)]
            if not any(rest):
                return self.token_of_the_model(p, i)
            p = rest
        return self.sample(residual(p, position.q), self.u(i, Purpose.RESAMPLE))

    def lenders(self, p, x):
        """LANTERN: the nearest tokens, as long as their probability stays within the budget."""
        budget, lent, lenders = self.config.relax.delta, 0.0, []
        for y in self.near[x]:
            lent += p[y]
            if lent > budget:
                break
            lenders.append(y)
        return lenders

    def cluster(self, p, x):
        """GSD: tokens of like rank, probability and codebook vector."""
        c, order = self.config.relax, sorted(range(self.V), key=lambda y: -p[y])
        rank = order.index(x)
        around = order[max(0, rank - c.group // 2) : rank + c.group // 2 + 1]
        return [
            y
            for y in around
            if y == x
            or (
                abs(p[y] - p[x]) < c.delta
                and math.dist(self.codebook[y], self.codebook[x]) < c.distance
            )
        ]

    # Drafting.

    def draft(self, i, q, old):
        u = self.u(i, Purpose.DRAFT)
        if self.config.drafter == "gumbel" and not (self.sparse and len(set(q)) == 1):
            return self.gumbel_max(q, i)
        if self.config.drafter != "coupled" or old is None:
            return self.sample(q, u)
        if self.u(i, Purpose.KEEP) * old.q[old.draft] < q[old.draft]:
            return old.draft
        return self.sample(residual(q, old.q), u)

    def initial(self, i, end, last_p, last_draft):
        """The distribution of a position that enters; those from `end` on have had none yet."""
        if self.model.forced[i : i + 1] == [True]:
            return self.one_hot(i)
        if self.config.init == "left":
            return last_p
        if self.config.init == "repeat":
            return [float(x == last_draft) for x in range(self.V)]
        if self.config.init == "above":
            above = self.model.above(i)
            while above is not None and above >= end:
                above = self.model.above(above)
            if above is not None:
                return self.newest[above]
        return [1 / self.V] * self.V

    # Verification prediction.

    def predict(self, position, p, history):
        c = self.config.prediction
        if c.kind == "none":
            return p
        top = sorted(range(self.V), key=lambda x: -p[x])[: c.top_k or self.V]
        if c.kind == "published":
            return self.published(p, history, top, c.beta)
        if c.kind == "momentum":
            return self.momentum(p, history, top, c.momentum)
        position.top = top
        position.predictions = [
            p,
            self.momentum(p, history, top, c.momentum),
            self.momentum(p, history, top, 2 * c.momentum),
            self.published(p, history, top, 0.5 * c.beta),
            self.published(p, history, top, c.beta),
        ]
        errors = [self.errors[0] * 0.99, *self.errors[1:]]
        return position.predictions[errors.index(min(errors))]

    def published(self, p, history, top, beta):
        """log p' = log p + beta * M * S."""
        c, gain = self.config.prediction, {}
        for x in top:
            path = [p[x], *(past[x] for past in history[: c.rises])]
            rose = len(path) == c.rises + 1 and all(a > b for a, b in itertools.pairwise(path))
            mean = weighted_mean([past[x] for past in history], c.decay)
            gain[x] = beta * math.log((p[x] + 1e-6) / (mean + 1e-6)) if rose else 0.0
        return move(p, gain, c.clip)

    def momentum(self, p, history, top, factor):
        """log p' = log p + factor * (log p - mean of log history)."""
        c, gain = self.config.prediction, {}
        for x in top:
            mean = weighted_mean([math.log(past[x] + 1e-6) for past in history], c.decay)
            gain[x] = factor * (math.log(p[x] + 1e-6) - mean) if history else 0.0
        return move(p, gain, c.clip)

    def judge_predictions(self, window, p, committed):
        """Compare what was predicted for the committed positions with what came."""
        if self.config.prediction.kind != "adaptive":
            return
        for k in range(5):
            missed = 0.0
            for i in committed:
                predicted = window[i].predictions[k] if window[i].predictions else None
                if predicted:
                    missed += sum(abs(predicted[x] - p[i][x]) for x in window[i].top) / 2
            self.errors[k] = self.errors[k] * 0.98 ** len(committed) + missed


def residual(p, q):
    rest = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return rest if any(rest) else p


def weighted_mean(values, decay):
    weights = [decay**lag for lag in range(len(values))]
    total = sum(weights)
    return sum(w * v for w, v in zip(weights, values, strict=True)) / total if total else 0.0


def move(p, gain, clip):
    """p * exp(gain) at some tokens, which keep their mass together."""
    moved = {x: p[x] * math.exp(max(-clip, min(clip, gain[x]))) for x in gain}
    mass = sum(p[x] for x in gain) / sum(moved.values())
    return [moved[x] * mass if x in moved else p[x] for x in range(len(p))]
