"""The engine: jobs in, images out. All rows take one decoding step at a time; the host reads one small tensor a step."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from sjdvp import rng
from sjdvp.config import RunConfig
from sjdvp.decode.decoder import make_decoder
from sjdvp.decode.state import Layout, State
from sjdvp.decode.step import admit, decode_step, window_input
from sjdvp.engine.cuda_graph import make_step, pick_mode
from sjdvp.engine.devices import pick_batch_size
from sjdvp.engine.loading import load_model
from sjdvp.engine.memory import ElasticBatch
from sjdvp.engine.metrics import (
    ImageSequence,
    decoding_stats,
    peak_memory,
    synchronize,
    token_digest,
)
from sjdvp.engine.model_runner import ModelRunner
from sjdvp.engine.neighbours import cached_neighbours
from sjdvp.engine.scheduler import Slots, arrivals
from sjdvp.errors import ImageError, PromptError
from sjdvp.interfaces import ImageModel
from sjdvp.jobs import ImageResult, Job, JobQueue


@dataclass(frozen=True, slots=True)
class _Ended:
    """A row that is done, as read by the host: what it decoded, or why it failed."""

    sequence: ImageSequence
    tokens_N: Tensor
    stats: dict[str, Any]
    error: ImageError | None


class Engine:
    """Draws images with one model and one decoder on one device, `batch_size` at a time. Implements `sjdvp.jobs.ImageGenerator`."""

    def __init__(self, model: ImageModel, config: RunConfig, batch_size: int) -> None:
        self.model, self.config, self.batch_size = model, config, batch_size
        grid = model.grid
        layout = Layout(grid.forced_S().to(model.device), grid.stride, model.vocab_size)
        self.decoder = make_decoder(
            config.decoder, config.sampling, layout, model.codebook, cached_neighbours
        )
        self.runner = ModelRunner(model, batch_size, self.decoder.window, config.sampling.cfg_scale)
        probs_dtype = torch.promote_types(model.dtype, torch.float32)
        with (
            torch.inference_mode()
        ):  # as all later states are made: torch.compile tells the two kinds of tensor apart
            self.state = self.decoder.idle_state(batch_size, probs_dtype, model.device)
        self._rows: Slots[ImageSequence] = Slots(batch_size)
        self._places: dict[int, int] = {}  # busy row: the first position that is not committed
        self._warm = False
        self._aside = _stream_of_its_own(model.device)
        mode = pick_mode(config, model.device)
        self._fast = make_step(
            self.forward_pass, self.decode, mode, model.device, len(self.runner.kv_buckets)
        )
        self.compile_s = 0.0 if mode == "eager" else self._prepare()

    @torch.inference_mode()
    def _prepare(self) -> float:
        """Compile or capture the step for each cache length, on idle rows; return the seconds it took."""
        started = perf_counter()
        for kv_length in self.runner.kv_buckets:
            self.advance(kv_length)
        synchronize(self.model.device)
        return perf_counter() - started

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """See `sjdvp.jobs.ImageGenerator`. Pixels are decoded on a thread of their own while the next tokens are decoded."""
        with ThreadPoolExecutor(1, thread_name_prefix="pixels") as pool:
            decoding_pixels: deque[Future[ImageResult]] = deque()
            while True:
                while decoding_pixels and decoding_pixels[0].done():
                    yield decoding_pixels.popleft().result()
                idle = not self._rows.busy()
                for row, job in arrivals(
                    source, self._rows.free(), wait=idle and not decoding_pixels
                ):
                    refused = self._admit(row, job)
                    if refused is not None:
                        decoding_pixels.append(pool.submit(self._finish, refused))
                if self._rows.busy():
                    decoding_pixels.extend(
                        pool.submit(self._finish, ended) for ended in self._step()
                    )
                elif decoding_pixels:
                    yield decoding_pixels.popleft().result()
                elif idle:
                    return

    @torch.inference_mode()
    def _admit(self, row: int, job: Job) -> _Ended | None:
        """Start a job in a row; return its failure if it cannot start."""
        sequence = ImageSequence(job, warmup=not self._warm)
        try:
            prompt = self.model.prompt(job.prompt)
        except PromptError as refused:  # a class that does not exist, say
            return self._ended(sequence, None, ImageError(str(refused), refused.hint))
        sequence.prompt_tokens = prompt.n_tokens
        if prompt.truncated and self.config.run.on_long_prompt == "error":
            error = ImageError(
                f"the prompt is longer than the {self.model.max_prompt} tokens that {self.model.name} reads",
                "shorten it, or run with --on-long-prompt truncate",
            )
            return self._ended(sequence, None, error)
        sequence.truncated = prompt.truncated
        logits_1V = self.runner.prefill(row, prompt)
        admit(self.decoder, self.state, [row], logits_1V, rng.keys([job.seed], self.model.device))
        synchronize(self.model.device)
        sequence.prefilled = perf_counter()
        self._rows.sit(row, sequence)
        self._places[row] = 1
        return None

    @torch.inference_mode()
    def _step(self) -> list[_Ended]:
        """Take one step with all rows; return those that have ended."""
        self.advance(self.runner.kv_bucket(self._places))
        self._warm = True
        n_B, bad_B = torch.stack([self.state.n_B, self.state.bad_B.long()]).tolist()
        ended = []
        for row, sequence in self._rows.busy():
            self._places[row] = n_B[row]
            if bad_B[row] or n_B[row] == self.decoder.layout.length:
                error = (
                    ImageError("the model gave logits that are not finite", "try --dtype fp32")
                    if bad_B[row]
                    else None
                )
                sequence.decoded = perf_counter()
                ended.append(self._ended(sequence, row, error))
                self.state.n_B[row] = self.decoder.layout.length
                self._rows.leave(row)
                del self._places[row]
        return ended

    def advance(self, kv_length: int) -> None:
        """Take one step with all rows, in the form that was chosen: eager, compiled or replayed."""
        self.state = self._fast(self.state, kv_length)

    def forward_pass(self, state: State, kv_length: int) -> Tensor:
        """Return the guided logits of all windows [B, W, V], from a forward that looks at `kv_length` slots of the cache."""
        return self.runner(*window_input(state, self.decoder.window), kv_length)

    def decode(self, state: State, logits_BWV: Tensor) -> State:
        """Verify, commit and draft: tensors in, tensors of the same shapes out."""
        return decode_step(self.decoder, state, logits_BWV)

    def _ended(self, sequence: ImageSequence, row: int | None, error: ImageError | None) -> _Ended:
        """Read what a row has come to. What failed has no figures."""
        if row is None or error is not None:
            return _Ended(sequence, torch.zeros(0, dtype=torch.int64), {}, error)
        state, grid, length = self.state, self.model.grid, self.decoder.layout.length
        tally, commits = state.tally_BT[row].tolist(), state.commits_BN[row].tolist()
        stats = decoding_stats(
            length, int(state.step_B[row]), tally, commits, predicts=self.decoder.predicts
        )
        stats["accept_map"] = "".join(
            map(str, grid.image_tokens(state.stood_BS[row, :length]).tolist())
        )
        return _Ended(
            sequence, grid.image_tokens(state.tokens_BS[row, :length]).cpu(), stats, error
        )

    def _finish(self, ended: _Ended) -> ImageResult:
        """Turn tokens into pixels and complete the figures; runs beside the decoding of other images."""
        sequence, error, started = ended.sequence, ended.error, perf_counter()
        pixels_HW3 = None
        if error is None:
            try:
                with self._aside:
                    pixels_HW3 = (
                        self.model.pixels(ended.tokens_N.to(self.model.device)).cpu().numpy()
                    )
            except ImageError as failure:
                error = failure
        done = perf_counter()
        stats = {
            **ended.stats,
            "token_sha256": None if error else token_digest(ended.tokens_N.tolist()),
            "prompt_tokens": sequence.prompt_tokens,
            "truncated": sequence.truncated,
            "latency_s": done - sequence.started,
            "prefill_s": max(sequence.prefilled - sequence.started, 0.0),
            "decode_s": max(sequence.decoded - sequence.prefilled, 0.0),
            "pixels_s": done - started,
            "batch_size": self.batch_size,
            "warmup": sequence.warmup,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": self.model.device.type,
            "gpu": torch.cuda.get_device_name(self.model.device)
            if self.model.device.type == "cuda"
            else None,
            "peak_mem_bytes": peak_memory(self.model.device),
            "model": self.model.name,
            "revision": self.model.revision,
        }
        return ImageResult(sequence.job, pixels_HW3, stats, _described(error))


def _stream_of_its_own(device: torch.device) -> AbstractContextManager[object]:
    """Return a context for the pixels: on a GPU they run beside the decoding, and no step waits for them."""
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def _described(error: ImageError | None) -> dict[str, str] | None:
    return (
        None
        if error is None
        else {"type": type(error).__name__, "message": str(error), "hint": error.hint}
    )


@contextmanager
def open_engine(config: RunConfig) -> Iterator[ElasticBatch]:
    """Load the model that a configuration names and put an engine around it, for as long as the context lasts."""
    model = load_model(config)
    yield ElasticBatch(
        lambda batch_size: Engine(model, config, batch_size), pick_batch_size(config, model)
    )
