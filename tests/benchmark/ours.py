"""Our engine, stepped as its own loop does; with scripted acceptance the verifier does all its work, then a script decides."""

from dataclasses import dataclass, replace

import torch

from sjdvp import rng
from sjdvp.decode.step import admit, window_input
from sjdvp.engine.engine import Engine
from sjdvp.interfaces import Verdict, Verifier
from tests.benchmark.timing import Timed


@dataclass(frozen=True)
class Scripted:
    """A verifier whose count of accepted drafts is replaced by a fixed one."""

    inner: Verifier
    accept: int
    lossless = False

    def __call__(self, p_BWV, q_BWV, draft_BW, live_BW, noise):
        verdict = self.inner(p_BWV, q_BWV, draft_BW, live_BW, noise)
        room_B = live_BW.sum(-1)
        return Verdict(torch.minimum(verdict.accepted_B * 0 + self.accept, room_B), verdict.token_B)


class OurLoop:
    """An engine with an image in every row."""

    def __init__(self, backbone, config, n_rows, accept=None):
        self.engine = engine = Engine(backbone, config, n_rows)
        if accept is not None:
            engine.decoder = replace(engine.decoder, verifier=Scripted(engine.decoder.verifier, accept))
        engine.forward = Timed(engine.forward)
        self.seat()

    @torch.inference_mode()
    def seat(self):
        """Begin an image in every row."""
        engine, prompt = self.engine, self.engine.backbone.prompt("a red apple")
        for row in range(engine.n_rows):
            admit(engine.decoder, engine.state, [row], engine.forward.prefill(row, prompt), rng.keys([row]))
        self.places = [1] * engine.n_rows

    @property
    def forward(self):
        return self.engine.forward

    @torch.inference_mode()
    def step(self):
        """Take one step; what the host must know is read, as the engine's loop does."""
        engine = self.engine
        engine.advance(self.reach())
        self.places, _bad = torch.stack([engine.state.n_B, engine.state.bad_B.long()]).tolist()

    @torch.inference_mode()
    def bare_forward(self):
        """The forward of the step that comes next, alone."""
        self.forward(*window_input(self.engine.state, self.engine.decoder.window), self.reach())

    def reach(self):
        return self.forward.reach(dict(enumerate(self.places)))
