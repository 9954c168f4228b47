"""Our engine, stepped as its own loop does; with scripted acceptance the verifier does all its work, then a script decides."""

from dataclasses import dataclass, replace

import torch

from benchmarks.timing import Timed
from sjdvp import rng
from sjdvp.decode.step import admit, window_input
from sjdvp.engine.engine import Engine
from sjdvp.interfaces import Verdict, Verifier


@dataclass(frozen=True)
class Scripted:
    """A verifier whose count of accepted drafts is replaced by a fixed one."""

    inner: Verifier
    accept: int

    def __call__(self, target_probs_BWV, draft_probs_BWV, draft_BW, is_draft_BW, noise):
        verdict = self.inner(target_probs_BWV, draft_probs_BWV, draft_BW, is_draft_BW, noise)
        room_B = is_draft_BW.sum(-1)
        return Verdict(torch.minimum(verdict.accepted_B * 0 + self.accept, room_B), verdict.token_B)


class OurLoop:
    """An engine with an image in every row."""

    def __init__(self, model, config, batch_size, accept=None):
        self.engine = engine = Engine(model, config, batch_size)
        if accept is not None:
            engine.decoder = replace(
                engine.decoder, verifier=Scripted(engine.decoder.verifier, accept)
            )
        engine.runner = Timed(engine.runner)
        self.start()

    @torch.inference_mode()
    def start(self):
        """Begin an image in every row."""
        engine, prompt = self.engine, self.engine.model.prompt("a red apple")
        for row in range(engine.batch_size):
            admit(
                engine.decoder,
                engine.state,
                [row],
                engine.runner.prefill(row, prompt),
                rng.keys([row]),
            )
        self.places = [1] * engine.batch_size

    @property
    def forward(self):
        return self.engine.runner

    @torch.inference_mode()
    def step(self):
        """Take one step; what the host must know is read, as the engine's loop does."""
        engine = self.engine
        engine.advance(self.kv_bucket())
        self.places, _bad = torch.stack([engine.state.n_B, engine.state.bad_B.long()]).tolist()

    @torch.inference_mode()
    def bare_forward(self):
        """The forward of the step that comes next, alone."""
        self.forward(*window_input(self.engine.state, self.engine.decoder.window), self.kv_bucket())

    def kv_bucket(self):
        return self.forward.kv_bucket(dict(enumerate(self.places)))
