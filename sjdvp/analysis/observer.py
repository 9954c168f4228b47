"""An engine that is watched: the same steps and images, and sums of what they showed, image by image."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from sjdvp import rng
from sjdvp.analysis import iterations
from sjdvp.analysis.candidates import candidates
from sjdvp.analysis.iterations import MOST_RISES, Looks
from sjdvp.analysis.metrics import Sums, sums_row
from sjdvp.config import PredictionConfig, RunConfig
from sjdvp.decode.decoder import Decoder
from sjdvp.decode.state import State, columns, pick
from sjdvp.engine.engine import Engine
from sjdvp.engine.loading import open_engines
from sjdvp.jobs import ImageResult, JobQueue
from sjdvp.models.base import ImageModel
from sjdvp.runs.jsonl import Appender
from sjdvp.sampling import to_probs


class Observer:
    """Sees every step of one decoder, before and after; knows nothing of how the decoder decides."""

    def __init__(
        self,
        decoder: Decoder,
        prediction: PredictionConfig,
        batch_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._decoder, self._top_k = decoder, prediction.top_k
        self._candidates = partial(candidates, prediction)
        shape = (decoder.window, decoder.layout.vocab_size)
        depth = max(MOST_RISES, prediction.history) + 1
        self._first_BWV = torch.zeros(batch_size, *shape, dtype=dtype, device=device)
        self._past_BHWV = torch.zeros(batch_size, depth, *shape, dtype=dtype, device=device)
        self._age_BW = torch.zeros(batch_size, decoder.window, dtype=torch.int64, device=device)
        self._sums: dict[str, Tensor] = {}
        self._ended: dict[int, Sums] = {}

    def see(self, before: State, logits_BWV: Tensor, after: State) -> None:
        """Take in one step: the state it began with, the logits it was given, the state it led to."""
        self._begin(before.nfe_B == 0)
        decoder, layout = self._decoder, self._decoder.layout
        column_W = columns(decoder.window, logits_BWV.device)
        pos_BW = before.n_B[:, None] + column_W
        forced_BW = layout.forced_at(pos_BW)
        open_BW = (pos_BW < layout.length) & ~forced_BW & (before.n_B < layout.length)[:, None]
        target_probs_BWV = to_probs(logits_BWV, forced_BW, decoder.sampling).to(
            self._first_BWV.dtype
        )
        n_new_B = after.n_B - before.n_B
        committed_BW = (column_W < n_new_B[:, None]) & open_BW
        token_BW = after.tokens_BS.gather(1, pos_BW)
        accepted_BW = committed_BW & after.accept_map_BS.gather(1, pos_BW)
        counts_BW = open_BW & (self._age_BW > 0)
        seen = Looks(target_probs_BWV, self._past_BHWV, self._first_BWV, self._age_BW, counts_BW)
        # A cut may strike a code that a relaxed decoder commits all the same; uncut, its likelihood is finite.
        uncut_BWV = to_probs(logits_BWV, forced_BW, replace(decoder.sampling, top_k=0, top_p=1.0))
        is_draft_BW = open_BW & (column_W < decoder.window - 1)
        self._add(
            iterations.growth(seen, token_BW, committed_BW, accepted_BW)
            | iterations.rises(seen, self._top_k)
            | iterations.distances(seen, self._candidates, self._top_k, committed_BW)
            | iterations.tests(
                before.draft_probs_BWV,
                target_probs_BWV,
                is_draft_BW,
                is_draft_BW & (column_W < n_new_B[:, None]),
                accepted_BW,
            )
            | iterations.fidelity(uncut_BWV, token_BW, committed_BW)
        )
        self._remember(target_probs_BWV, n_new_B)
        self._end((before.n_B < layout.length) & (after.n_B == layout.length), after.key_B)

    def take(self, seed: int) -> Sums:
        """Return, once, the sums of a finished image."""
        return self._ended.pop(int(rng.keys([seed])))

    def _begin(self, new_B: Tensor) -> None:
        self._age_BW[new_B] = 0
        for total in self._sums.values():
            total[new_B] = 0

    def _add(self, found: dict[str, Tensor]) -> None:
        for name, value in found.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(value, dtype=torch.float64)
            self._sums[name] += value

    def _remember(self, target_probs_BWV: Tensor, n_new_B: Tensor) -> None:
        """Make this forward_pass the newest one, and follow the window to where it starts now."""
        first_BWV = torch.where((self._age_BW > 0)[..., None], self._first_BWV, target_probs_BWV)
        past_BHWV = torch.cat([target_probs_BWV[:, None], self._past_BHWV[:, :-1]], 1)
        window = self._decoder.window
        shift_BW = columns(window, target_probs_BWV.device) + n_new_B[:, None]
        source_BW = shift_BW.clamp(max=window - 1)
        self._first_BWV, self._past_BHWV = pick(first_BWV, source_BW), pick(past_BHWV, source_BW, 2)
        self._age_BW = torch.where(shift_BW < window, self._age_BW.gather(1, source_BW) + 1, 0)

    def _end(self, done_B: Tensor, key_B: Tensor) -> None:
        for row in done_B.nonzero().flatten().tolist():
            self._ended[int(key_B[row])] = {
                name: total[row].tolist() for name, total in self._sums.items()
            }


class ObservedEngine(Engine):
    """An engine whose images leave their sums in `notes`. Its times are not those of an engine left alone."""

    def __init__(
        self, model: ImageModel, config: RunConfig, batch_size: int, notes: Appender
    ) -> None:
        # A compiled or captured step has no room for a forward_pass; the tokens are the same from each.
        super().__init__(model, replace(config, run=replace(config.run, step="eager")), batch_size)
        probs_dtype = torch.promote_types(model.dtype, torch.float32)
        self._watch = Observer(
            self.decoder, config.decoder.prediction, batch_size, probs_dtype, model.device
        )
        self._notes = notes

    def decode(self, state: State, logits_BWV: Tensor) -> State:
        """Decode as `Engine.decode` does, and forward_pass at it."""
        after = super().decode(state, logits_BWV)
        self._watch.see(state, logits_BWV, after)
        return after

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """See `sjdvp.jobs.ImageGenerator`. The notes on an image are on disk before its image is."""
        for image in super().generate(source):
            if image.error is None:
                job = image.job
                self._notes.append([sums_row((job.index, job.sample), self._watch.take(job.seed))])
            yield image


@contextmanager
def open_watched(configs: Sequence[RunConfig], notes: Sequence[Path]) -> Iterator[list[Engine]]:
    """Load the model that all of `configs` name, and put a watched engine for each around it, with its file of notes."""
    with ExitStack() as stack:
        files = iter([stack.enter_context(Appender(path)) for path in notes])
        engines = open_engines(
            configs,
            lambda model, config, batch_size: ObservedEngine(
                model, config, batch_size, next(files)
            ),
        )
        yield stack.enter_context(engines)
