"""Our engine, stepped as its own loop does, with an image in every slot."""

from dataclasses import dataclass, replace

import torch

from benchmarks.timing import Stopwatch
from sjdvp.bench import admit_all
from sjdvp.decode.decoder import make_decoder
from sjdvp.decode.step import window_input
from sjdvp.engine.disk_cache import cached_neighbours
from sjdvp.engine.engine import Engine
from sjdvp.interfaces import Verdict, Verifier


@dataclass(frozen=True)
class ScriptedAcceptance:
    """A verifier that does all its work and then accepts a fixed number of draft tokens."""

    inner: Verifier
    accept: int
    lossless = False

    def __call__(self, target_probs_BWV, draft_probs_BWV, draft_BW, noise):
        verdict = self.inner(target_probs_BWV, draft_probs_BWV, draft_BW, noise)
        accept = min(self.accept, draft_BW.shape[1] - 1)  # the last column has no draft token
        return Verdict(torch.full_like(verdict.accepted_B, accept), verdict.token_B)


class EngineLoop:
    """An engine with a full batch; `accept` scripts the accepted draft tokens per step.

    `form` is how distributions are stored; None: as the engine does.
    """

    def __init__(self, model, config, batch_size, accept=None, form=None):
        self.engine = Engine(model, config, batch_size)
        if form is not None:
            self._store_as(form)
        if accept is not None:
            scripted = ScriptedAcceptance(self.engine.decoder.verifier, accept)
            self.engine.decoder = replace(self.engine.decoder, verifier=scripted)
        self.engine.runner = self.forward = Stopwatch(self.engine.runner)
        self.restart()

    @torch.inference_mode()
    def restart(self):
        """Start an image in every slot."""
        admit_all(self.engine)
        self.n_committed = [1] * self.engine.batch_size

    @torch.inference_mode()
    def step(self):
        """Take one step, and read what the engine reads after each."""
        self.engine.advance(self.kv_bucket())
        state = self.engine.state
        self.n_committed, _bad = torch.stack([state.n_B, state.bad_B.long()]).tolist()

    @torch.inference_mode()
    def bare_forward(self):
        """Run the forward pass of the next step, alone."""
        self.forward(*window_input(self.engine.state, self.engine.decoder.window), self.kv_bucket())

    def state_mb(self):
        """Return the megabytes that one slot keeps between steps."""
        storages = [tensor.untyped_storage() for tensor in self.engine.state.tensors()]
        return sum(s.nbytes() for s in storages) / self.engine.batch_size / 1e6

    def _store_as(self, form):
        engine, config = self.engine, self.engine.config
        engine.decoder = make_decoder(
            config.decoder,
            config.sampling,
            engine.model.layout,
            engine.model.codebook,
            cached_neighbours,
            form,
        )
        dtype, device = engine.state.error_BK.dtype, engine.model.device
        with torch.inference_mode():
            engine.state = engine.decoder.idle_state(engine.batch_size, dtype, device)

    def kv_bucket(self):
        return self.forward.kv_bucket(dict(enumerate(self.n_committed)))
