"""The engine: jobs in, images out. All slots take decode steps together (continuous batching).

The host reads one small tensor per step. Finished tokens become pixels on a thread of their own, by
the `PixelDecoder`, which also works without an engine.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sjdvp import rng
from sjdvp.config import RunConfig
from sjdvp.decode.decoder import make_decoder
from sjdvp.decode.state import State
from sjdvp.decode.step import admit, decode_step, window_input
from sjdvp.engine.cuda_graph import layer_parts, make_step, pick_mode
from sjdvp.engine.devices import GPU, device_name, peak_memory, synchronize, use_device
from sjdvp.engine.disk_cache import cached_neighbours
from sjdvp.engine.model_runner import ModelRunner
from sjdvp.engine.oom import is_out_of_memory, release_memory
from sjdvp.engine.scheduler import ImageSequence, Slots, next_jobs
from sjdvp.errors import ConfigError, ImageError, PromptError
from sjdvp.interfaces import EncodedPrompt, ImageLayout
from sjdvp.jobs import ImageResult, Job, JobQueue, error_fields, token_digest
from sjdvp.models.base import ImageModel
from sjdvp.sampling import MOST_TIES

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class _Finished:
    """A sequence that needs no more steps: its image tokens and statistics, or why it failed."""

    sequence: ImageSequence
    tokens_N: Tensor
    stats: dict[str, Any]
    error: ImageError | None


class Engine:
    """Generates images with one model and one decoder on one device, `batch_size` at a time.

    Implements `sjdvp.jobs.ImageGenerator`.
    """

    def __init__(
        self, model: ImageModel, config: RunConfig, batch_size: int, *, guided: bool | None = None
    ) -> None:
        """Allocate all slots. For `guided` see `ModelRunner`."""
        self.model, self.config, self.batch_size = model, config, batch_size
        device = model.device
        self.decoder = make_decoder(
            config.decoder, config.sampling, model.layout, model.codebook, cached_neighbours
        )
        mode = pick_mode(config, device)
        self.runner = ModelRunner(
            model,
            batch_size,
            self.decoder.window,
            config.sampling.cfg_scale,
            layer_parts(mode, device),
            cfg_interval=config.sampling.cfg_interval,
            guided=guided,
        )
        probs_dtype = torch.promote_types(model.dtype, torch.float32)
        # torch.compile distinguishes tensors made in inference mode, as all later states are.
        with torch.inference_mode():
            self.state = self.decoder.idle_state(batch_size, probs_dtype, device)
        self._decode_pixels = PixelDecoder(model, device)
        self._slots = Slots(batch_size)
        self._warm = False
        self._pixel_stream = _side_stream(device)
        self._step = make_step(self.forward_pass, self.decode, mode, device)
        self.compile_s = 0.0 if mode == "eager" else self._prepare_step()

    @torch.inference_mode()
    def _prepare_step(self) -> float:
        """Compile the step, and capture it for the first KV length bucket; return the seconds."""
        started = perf_counter()
        self.advance(self.runner.kv_buckets[0])
        synchronize(self.model.device)
        return perf_counter() - started

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """See `sjdvp.jobs.ImageGenerator`."""
        device = self.model.device
        # A new thread starts on the first GPU, whichever GPU the engine is on.
        with ThreadPoolExecutor(1, "pixels", use_device, (device,)) as pool:
            results: deque[Future[ImageResult]] = deque()
            while True:
                while results and results[0].done():
                    yield results.popleft().result()
                waiting = not results and not self._slots.busy()
                finished = self._admit_jobs(source, wait=waiting)
                decoding = bool(self._slots.busy())
                if decoding:
                    finished += self._iterate()
                    source.report(self._in_progress())
                results.extend(pool.submit(self._complete, sequence) for sequence in finished)
                if not decoding:
                    if not results:
                        return
                    yield results.popleft().result()

    def _admit_jobs(self, source: JobQueue, *, wait: bool) -> list[_Finished]:
        """Fill the free slots with jobs; return those that need no decoding."""
        jobs = next_jobs(source, self._slots.free(), wait=wait)
        return [finished for slot, job in jobs if (finished := self._admit(slot, job))]

    @torch.inference_mode()
    def _admit(self, slot: int, job: Job) -> _Finished | None:
        """Start a job in a free slot; return it if it cannot start, or has its tokens."""
        sequence = ImageSequence(job, warmup=not self._warm)
        if job.tokens is not None:
            return _Finished(sequence, torch.tensor(job.tokens), {}, None)
        try:
            prompt = self._prompt(job, sequence)
        except ImageError as error:
            return _failed(sequence, error)
        logits_1V = self.runner.prefill(slot, prompt, job.cfg_scale)
        admit(self.decoder, self.state, [slot], logits_1V, rng.keys([job.seed], self.model.device))
        synchronize(self.model.device)
        sequence.prefilled = perf_counter()
        self._slots.assign(slot, sequence)
        return None

    def _prompt(self, job: Job, sequence: ImageSequence) -> EncodedPrompt:
        run = self.config.sampling.negative_prompt
        negative = run if job.negative_prompt is None else job.negative_prompt
        try:
            prompt = self.model.prompt(job.prompt, negative)
        except PromptError as error:  # a class that does not exist, for example
            raise ImageError(str(error), error.hint) from error
        sequence.prompt_tokens = prompt.n_tokens
        if prompt.truncated and self.config.run.on_long_prompt == "error":
            raise ImageError(
                f"the prompt is longer than the {self.model.max_prompt} tokens that "
                f"{self.model.name} reads",
                "shorten it, or run with --on-long-prompt truncate",
            )
        sequence.truncated = prompt.truncated
        return prompt

    @torch.inference_mode()
    def _iterate(self) -> list[_Finished]:
        """Take one decode step with all slots; free those that finished and return them."""
        busy = self._slots.busy()
        self.advance(self.runner.kv_bucket({slot: seq.n_committed for slot, seq in busy}))
        self._warm = True
        n_B, bad_B = torch.stack([self.state.n_B, self.state.bad_B.long()]).tolist()
        length, finished = self.model.layout.length, []
        for slot, sequence in busy:
            sequence.n_committed = n_B[slot]
            if bad_B[slot] or n_B[slot] == length:
                sequence.decoded = perf_counter()
                finished.append(self._read(slot, sequence, bad=bool(bad_B[slot])))
                self.state.n_B[slot] = length  # idle
                self._slots.release(slot)
        return finished

    def _in_progress(self) -> float:
        """Return the sum of the committed parts of the images being decoded."""
        committed = sum(sequence.n_committed for _, sequence in self._slots.busy())
        return committed / self.model.layout.length

    def advance(self, kv_length: int) -> None:
        """Take one decode step with all slots: eager, compiled, or as a CUDA graph."""
        self.state = self._step(self.state, kv_length)

    def forward_pass(self, state: State, kv_length: int) -> Tensor:
        """Return the logits of all windows [B, W, V]; attention reads `kv_length` cache slots."""
        return self.runner(*window_input(state, self.decoder.window), kv_length)

    def decode(self, state: State, logits_BWV: Tensor) -> State:
        """Verify, commit and draft: tensors in, tensors of the same shapes out."""
        return decode_step(self.decoder, state, logits_BWV)

    def _read(self, slot: int, sequence: ImageSequence, *, bad: bool) -> _Finished:
        """Read the tokens and the statistics of a finished sequence to the host."""
        if bad:
            return _failed(sequence, self._bad_logits())
        state, layout, length = self.state, self.model.layout, self.model.layout.length
        accepted_S = state.accept_map_BS[slot, :length].cpu()
        stats = decoding_stats(layout, self.decoder.window, accepted_S)
        tokens_N = layout.image_tokens(state.tokens_BS[slot, :length]).cpu()
        return _Finished(sequence, tokens_N, stats, None)

    def _bad_logits(self) -> ImageError:
        """Return the error of a sequence whose logits cannot be sampled from."""
        ties = ""
        if self.decoder.form.n_support < self.model.layout.vocab_size:
            ties = f", or more than {MOST_TIES} that tie with the k-th of top-k"
        return ImageError(
            f"the model gave logits that are not finite{ties}",
            "try --dtype fp32" + (" or --set sampling.top_k=0" if ties else ""),
        )

    def _complete(self, finished: _Finished) -> ImageResult:
        """Decode the pixels and complete the statistics, while other images are being decoded."""
        sequence, error, started = finished.sequence, finished.error, perf_counter()
        image_HWC, tokens = None, None
        if error is None:
            tokens = tuple(finished.tokens_N.tolist())
            try:
                if self.model.vq_decoder is not None:
                    with self._pixel_stream:
                        image_HWC = self._decode_pixels(tokens)
                    _check_size(sequence.job, image_HWC)
            except ImageError as failure:
                error = failure
        done, device = perf_counter(), self.model.device
        stats = {
            **finished.stats,
            "token_sha256": token_digest(tokens) if tokens else None,
            "prompt_tokens": sequence.prompt_tokens,
            "truncated": sequence.truncated,
            "latency_s": done - sequence.started,
            "prefill_s": max(sequence.prefilled - sequence.started, 0.0),
            "decode_s": max(sequence.decoded - sequence.prefilled, 0.0),
            "pixels_s": done - started,
            "batch_size": self.batch_size,
            "warmup": sequence.warmup,
            "compile_s": self.compile_s,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "quantize": self.config.model.quantize,
            "device": device.type,
            "gpu": device_name(device) if device.type == GPU else None,
            "peak_mem_bytes": peak_memory(device),
            "model": self.model.name,
            "revision": self.model.revision,
        }
        return ImageResult(sequence.job, image_HWC, stats, error_fields(error), tokens)


def _failed(sequence: ImageSequence, error: ImageError) -> _Finished:
    """Return a sequence that failed: without tokens and statistics."""
    return _Finished(sequence, torch.zeros(0, dtype=torch.int64), {}, error)


def _check_size(job: Job, image_HWC: "np.ndarray[Any, Any]") -> None:
    """Raise ImageError for an image of another size than its row asks for."""
    height, width = image_HWC.shape[:2]
    if job.size not in (None, (width, height)):
        raise ImageError(f"the row asks for {job.size}, this model generates {width}x{height}")


def _side_stream(device: torch.device) -> AbstractContextManager[object]:
    """Return a context for the pixels: on a GPU they run beside the steps, which do not wait."""
    return torch.Stream(device) if device.type == GPU else nullcontext()


def decoding_stats(layout: ImageLayout, window: int, accepted_S: Tensor) -> dict[str, Any]:
    """Return how the tokens of one image were decoded, from which were accepted [S].

    Each iteration commits accepted tokens and one more, which ends it; only the last may lack it.
    So the acceptance map gives every count: NFE, draft tokens tested, and `accept_hist[k]`, the
    number of iterations that committed k tokens. Forced tokens do not count as drafted.
    """
    is_forced = layout.forced_at(torch.arange(layout.length)).tolist()
    is_accepted = accepted_S.tolist()
    hist, drafted, size = [0] * (window + 1), 0, 0
    for position in range(1, layout.length):  # position 0 is sampled from the prefill
        size += 1
        drafted += size < window and not is_forced[position]  # the last of W is the bonus token
        if not is_accepted[position] or position == layout.length - 1:
            hist[size] += 1
            size = 0
    accept_map = layout.image_tokens(accepted_S.int()).tolist()
    nfe, accepted = sum(hist), sum(accept_map)
    return {
        "nfe": nfe,
        "image_tokens": layout.length,
        "tokens_per_nfe": _ratio(layout.length, nfe),
        "drafted": drafted,
        "accepted": accepted,
        "accept_rate": _ratio(accepted, drafted),
        "accept_hist": hist,
        "accept_map": "".join(map(str, accept_map)),
    }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


class PixelDecoder:
    """The VQ decoder of a model, which is on `device`; the transformer need not be loaded."""

    def __init__(self, model: ImageModel, device: torch.device) -> None:
        self.model = model
        self._device = device

    def __call__(self, tokens: tuple[int, ...]) -> "np.ndarray[Any, Any]":
        """Return the uint8 RGB pixels [H, W, 3].

        If memory runs out it tries again, with freed memory and in bands of image rows. Raises
        ImageError when memory is too small even then, or a pixel is not finite; ConfigError when
        the tokens cannot be an image of this model.
        """
        self._check(tokens)
        for bands in (False, True):
            try:
                tokens_N = torch.tensor(tokens, device=self._device)
                return self.model.decode_pixels(tokens_N, bands=bands).cpu().numpy()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if bands:
                    raise ImageError(
                        "out of memory in the VQ decoder; the image tokens are saved",
                        "`sjdvp decode` makes the image from them, with the VQ decoder alone",
                    ) from error
            release_memory()  # not in the except clause: the error holds tensors of its frames
        raise AssertionError("unreachable")

    def _check(self, tokens: tuple[int, ...]) -> None:
        layout = self.model.layout
        count = layout.rows * layout.columns
        if len(tokens) != count or max(tokens) >= layout.vocab_size:
            raise ConfigError(
                f"{self.model.name} has {count} image tokens below {layout.vocab_size}, "
                f"found {len(tokens)} up to {max(tokens, default=0)}",
                "give the model and the size of the run: --profile, --model, --size",
            )
