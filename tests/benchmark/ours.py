"""Our engine with scripted acceptance: the verifier does all its work, then a script says how many drafts stood."""

from dataclasses import dataclass, replace

import torch

from sjdvp import rng
from sjdvp.decode.step import admit
from sjdvp.engine.engine import Engine
from sjdvp.interfaces import Verdict, Verifier


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


@torch.inference_mode()
def seated(backbone, config, n_rows, accept=None):
    """Return an engine with an image in every row."""
    engine = Engine(backbone, config, n_rows)
    if accept is not None:
        engine.decoder = replace(engine.decoder, verifier=Scripted(engine.decoder.verifier, accept))
    prompt = backbone.prompt("a red apple")
    for row in range(n_rows):
        admit(engine.decoder, engine.state, [row], engine.forward.prefill(row, prompt), rng.keys([row]))
    return engine


def advance(engine):
    """Take one step; the row ends are read, as the engine's own loop does."""
    with torch.inference_mode():
        places = dict(enumerate(engine.state.n_B.tolist()))
        engine.advance(engine.forward.reach(places))
        return engine.state.n_B.tolist()
