"""An observed engine: the same steps and images, and per image the sums of what they showed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from sjdvp import rng
from sjdvp.analysis import iterations
from sjdvp.analysis.iterations import MOST_RISES, WindowHistory
from sjdvp.analysis.metrics import Sums, sums_row
from sjdvp.config import PredictionConfig, RunConfig
from sjdvp.decode.decoder import Decoder
from sjdvp.decode.state import State, columns
from sjdvp.engine.engine import Engine
from sjdvp.engine.loading import open_engines
from sjdvp.jobs import ImageResult, JobQueue
from sjdvp.models.base import ImageModel
from sjdvp.runs.jsonl import Appender
from sjdvp.sampling import to_probs


class Observer:
    """Observes one decoder through the states before and after each step, and its logits."""

    def __init__(
        self,
        decoder: Decoder,
        prediction: PredictionConfig,
        batch_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._decoder, self._top_k = decoder, prediction.top_k
        self._predict = partial(iterations.predictions, prediction)
        shape = (decoder.window, decoder.layout.vocab_size)
        depth = max(MOST_RISES, prediction.history) + 1
        self._first_BWV = torch.zeros(batch_size, *shape, dtype=dtype, device=device)
        self._past_BHWV = torch.zeros(batch_size, depth, *shape, dtype=dtype, device=device)
        self._age_BW = torch.zeros(batch_size, decoder.window, dtype=torch.int64, device=device)
        self._sums: dict[str, Tensor] = {}
        self._ended: dict[int, list[Sums]] = {}  # two images may have the same seed

    def see(self, before: State, logits_BWV: Tensor, after: State) -> None:
        """Add one step: the state before, the logits, the state after."""
        self._begin(before.nfe_B == 0)
        decoder, layout = self._decoder, self._decoder.layout
        column_W = columns(decoder.window, logits_BWV.device)
        pos_BW = before.n_B[:, None] + column_W
        forced_BW = layout.forced_at(pos_BW)
        open_BW = (pos_BW < layout.length) & ~forced_BW & (before.n_B < layout.length)[:, None]
        target_probs_BWV = to_probs(logits_BWV, forced_BW, decoder.sampling)
        target_probs_BWV = target_probs_BWV.to(self._first_BWV.dtype)
        n_new_B = after.n_B - before.n_B
        committed_BW = (column_W < n_new_B[:, None]) & open_BW
        token_BW = after.tokens_BS.gather(1, pos_BW)
        accepted_BW = committed_BW & after.accept_map_BS.gather(1, pos_BW)
        counts_BW = open_BW & (self._age_BW > 0)
        seen = WindowHistory(
            target_probs_BWV, self._past_BHWV, self._first_BWV, self._age_BW, counts_BW
        )
        # A relaxed verifier may commit a token that top-k excludes; without it the likelihood is
        # finite.
        uncut_BWV = to_probs(logits_BWV, forced_BW, replace(decoder.sampling, top_k=0, top_p=1.0))
        is_draft_BW = open_BW & (column_W < decoder.window - 1)
        self._add(
            iterations.growth(seen, token_BW, committed_BW, accepted_BW)
            | iterations.rises(seen, self._top_k)
            | iterations.distances(seen, self._predict, self._top_k, committed_BW)
            | iterations.tests(
                decoder.form.dense(before.draft_probs_BWY),
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
        key = int(rng.keys([seed]))
        sums = self._ended[key].pop(0)
        if not self._ended[key]:
            del self._ended[key]
        return sums

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
        """Add this distribution to the history, and move the history with the window."""
        first_BWV = torch.where((self._age_BW > 0)[..., None], self._first_BWV, target_probs_BWV)
        past_BHWV = torch.cat([target_probs_BWV[:, None], self._past_BHWV[:, :-1]], 1)
        slot_B1 = columns(len(n_new_B), n_new_B.device)[:, None]
        window = self._decoder.window
        shift_BW = columns(window, target_probs_BWV.device) + n_new_B[:, None]
        source_BW = shift_BW.clamp(max=window - 1)
        self._first_BWV = first_BWV[slot_B1, source_BW]
        self._past_BHWV = past_BHWV.transpose(1, 2)[slot_B1, source_BW].transpose(1, 2)
        self._age_BW = torch.where(shift_BW < window, self._age_BW.gather(1, source_BW) + 1, 0)

    def _end(self, done_B: Tensor, key_B: Tensor) -> None:
        for slot in done_B.nonzero().flatten().tolist():
            sums = {name: total[slot].tolist() for name, total in self._sums.items()}
            self._ended.setdefault(int(key_B[slot]), []).append(sums)


class ObservedEngine(Engine):
    """An engine that appends the sums of each image to a file. Observing makes it slower."""

    def __init__(
        self, model: ImageModel, config: RunConfig, batch_size: int, sums: Appender
    ) -> None:
        # A compiled or captured step cannot be observed; the tokens are the same.
        super().__init__(model, replace(config, run=replace(config.run, step="eager")), batch_size)
        probs_dtype = torch.promote_types(model.dtype, torch.float32)
        self._watch = Observer(
            self.decoder, config.decoder.prediction, batch_size, probs_dtype, model.device
        )
        self._file = sums

    def decode(self, state: State, logits_BWV: Tensor) -> State:
        """Decode as `Engine.decode` does, and observe it."""
        after = super().decode(state, logits_BWV)
        self._watch.see(state, logits_BWV, after)
        return after

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """See `sjdvp.jobs.ImageGenerator`. The sums are on disk before the image is."""
        for image in super().generate(source):
            if image.error is None:
                job = image.job
                self._file.append([sums_row((job.index, job.sample), self._watch.take(job.seed))])
            yield image


@contextmanager
def open_watched(configs: Sequence[RunConfig], sums: Sequence[Path]) -> Iterator[list[Engine]]:
    """Load the model of all `configs`; build an observed engine with a file of sums for each."""
    with ExitStack() as stack:
        files = iter([stack.enter_context(Appender(path)) for path in sums])
        engines = open_engines(
            configs,
            lambda model, config, batch_size: ObservedEngine(
                model, config, batch_size, next(files)
            ),
        )
        yield stack.enter_context(engines)
