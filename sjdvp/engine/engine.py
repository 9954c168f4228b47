"""The engine: jobs in, pictures out. All rows take one decoding step at a time; the host reads one small tensor a step."""

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
from sjdvp.decode.build import make_decoder
from sjdvp.decode.step import admit, decode_step, window_input
from sjdvp.decode.window import Layout, State
from sjdvp.engine.devices import pick_batch_size
from sjdvp.engine.forward import Forward
from sjdvp.engine.loading import load_backbone
from sjdvp.engine.memory import Elastic
from sjdvp.engine.metrics import Seat, decoding_stats, peak_memory, synchronize, token_digest
from sjdvp.engine.neighbours import cached_neighbours
from sjdvp.engine.runtime import make_step, pick_mode
from sjdvp.engine.scheduler import Rows, arrivals
from sjdvp.errors import ImageError, PromptError
from sjdvp.interfaces import Backbone
from sjdvp.jobs import Job, JobSource, Picture


@dataclass(frozen=True, slots=True)
class _Ended:
    """A row that is done, as read by the host: what it decoded, or why it failed."""

    seat: Seat
    codes_N: Tensor
    stats: dict[str, Any]
    error: ImageError | None


class Engine:
    """Draws images with one backbone and one decoder on one device, `n_rows` at a time. Implements `sjdvp.jobs.Painter`."""

    def __init__(self, backbone: Backbone, config: RunConfig, n_rows: int) -> None:
        self.backbone, self.config, self.n_rows = backbone, config, n_rows
        grid = backbone.grid
        layout = Layout(grid.forced_S().to(backbone.device), grid.stride, backbone.n_codes)
        self.decoder = make_decoder(config.decoder, config.sampling, layout, backbone.codebook, cached_neighbours)
        self.forward = Forward(backbone, n_rows, self.decoder.window, config.sampling.cfg_scale)
        law_dtype = torch.promote_types(backbone.dtype, torch.float32)
        with torch.inference_mode():  # as all later states are made: torch.compile tells the two kinds of tensor apart
            self.state = self.decoder.idle_state(n_rows, law_dtype, backbone.device)
        self._rows: Rows[Seat] = Rows(n_rows)
        self._places: dict[int, int] = {}  # busy row: the first position that is not committed
        self._warm = False
        self._aside = _stream_of_its_own(backbone.device)
        mode = pick_mode(config, backbone.device)
        self._fast = make_step(self.look, self.decode, mode, backbone.device, len(self.forward.lengths))
        self.compile_s = 0.0 if mode == "eager" else self._prepare()

    @torch.inference_mode()
    def _prepare(self) -> float:
        """Compile or capture the step for each cache length, on idle rows; return the seconds it took."""
        started = perf_counter()
        for n_slots in self.forward.lengths:
            self.advance(n_slots)
        synchronize(self.backbone.device)
        return perf_counter() - started

    def paint(self, source: JobSource) -> Iterator[Picture]:
        """See `sjdvp.jobs.Painter`. Pixels are decoded on a thread of their own while the next codes are decoded."""
        with ThreadPoolExecutor(1, thread_name_prefix="pixels") as pool:
            drying: deque[Future[Picture]] = deque()
            while True:
                while drying and drying[0].done():
                    yield drying.popleft().result()
                idle = not self._rows.busy()
                for row, job in arrivals(source, self._rows.free(), wait=idle and not drying):
                    refused = self._seat(row, job)
                    if refused is not None:
                        drying.append(pool.submit(self._finish, refused))
                if self._rows.busy():
                    drying.extend(pool.submit(self._finish, ended) for ended in self._step())
                elif drying:
                    yield drying.popleft().result()
                elif idle:
                    return

    @torch.inference_mode()
    def _seat(self, row: int, job: Job) -> _Ended | None:
        """Start a job in a row; return its failure if it cannot start."""
        seat = Seat(job, warmup=not self._warm)
        try:
            prompt = self.backbone.prompt(job.prompt)
        except PromptError as refused:  # a class that does not exist, say
            return self._ended(seat, None, ImageError(str(refused), refused.hint))
        seat.prompt_tokens = prompt.n_tokens
        if prompt.truncated and self.config.run.on_long_prompt == "error":
            error = ImageError(
                f"the prompt is longer than the {self.backbone.max_prompt} tokens that {self.backbone.name} reads",
                "shorten it, or run with --on-long-prompt truncate",
            )
            return self._ended(seat, None, error)
        seat.truncated = prompt.truncated
        logits_1V = self.forward.prefill(row, prompt)
        admit(self.decoder, self.state, [row], logits_1V, rng.keys([job.seed], self.backbone.device))
        synchronize(self.backbone.device)
        seat.prefilled = perf_counter()
        self._rows.sit(row, seat)
        self._places[row] = 1
        return None

    @torch.inference_mode()
    def _step(self) -> list[_Ended]:
        """Take one step with all rows; return those that have ended."""
        self.advance(self.forward.reach(self._places))
        self._warm = True
        n_B, bad_B = torch.stack([self.state.n_B, self.state.bad_B.long()]).tolist()
        ended = []
        for row, seat in self._rows.busy():
            self._places[row] = n_B[row]
            if bad_B[row] or n_B[row] == self.decoder.layout.length:
                error = ImageError("the model gave logits that are not finite", "try --dtype fp32") if bad_B[row] else None
                seat.decoded = perf_counter()
                ended.append(self._ended(seat, row, error))
                self.state.n_B[row] = self.decoder.layout.length
                self._rows.leave(row)
                del self._places[row]
        return ended

    def advance(self, n_slots: int) -> None:
        """Take one step with all rows, in the form that was chosen: eager, compiled or replayed."""
        self.state = self._fast(self.state, n_slots)

    def look(self, state: State, n_slots: int) -> Tensor:
        """Return the guided logits of all windows [B, W, V], from a forward that looks at `n_slots` slots of the cache."""
        return self.forward(*window_input(state, self.decoder.window), n_slots)

    def decode(self, state: State, logits_BWV: Tensor) -> State:
        """Verify, commit and draft: tensors in, tensors of the same shapes out."""
        return decode_step(self.decoder, state, logits_BWV)

    def _ended(self, seat: Seat, row: int | None, error: ImageError | None) -> _Ended:
        """Read what a row has come to. What failed has no figures."""
        if row is None or error is not None:
            return _Ended(seat, torch.zeros(0, dtype=torch.int64), {}, error)
        state, grid, length = self.state, self.backbone.grid, self.decoder.layout.length
        tally, commits = state.tally_BT[row].tolist(), state.commits_BN[row].tolist()
        stats = decoding_stats(length, int(state.step_B[row]), tally, commits, predicts=self.decoder.predicts)
        stats["accept_map"] = "".join(map(str, grid.image_codes(state.stood_BS[row, :length]).tolist()))
        return _Ended(seat, grid.image_codes(state.codes_BS[row, :length]).cpu(), stats, error)

    def _finish(self, ended: _Ended) -> Picture:
        """Turn codes into pixels and complete the figures; runs beside the decoding of other images."""
        seat, error, started = ended.seat, ended.error, perf_counter()
        pixels_HW3 = None
        if error is None:
            try:
                with self._aside:
                    pixels_HW3 = self.backbone.pixels(ended.codes_N.to(self.backbone.device)).cpu().numpy()
            except ImageError as failure:
                error = failure
        done = perf_counter()
        stats = {
            **ended.stats,
            "token_sha256": None if error else token_digest(ended.codes_N.tolist()),
            "prompt_tokens": seat.prompt_tokens,
            "truncated": seat.truncated,
            "latency_s": done - seat.started,
            "prefill_s": max(seat.prefilled - seat.started, 0.0),
            "decode_s": max(seat.decoded - seat.prefilled, 0.0),
            "pixels_s": done - started,
            "batch_size": self.n_rows,
            "warmup": seat.warmup,
            "dtype": str(self.backbone.dtype).removeprefix("torch."),
            "device": self.backbone.device.type,
            "gpu": torch.cuda.get_device_name(self.backbone.device) if self.backbone.device.type == "cuda" else None,
            "peak_mem_bytes": peak_memory(self.backbone.device),
            "model": self.backbone.name,
            "revision": self.backbone.revision,
        }
        return Picture(seat.job, pixels_HW3, stats, _described(error))


def _stream_of_its_own(device: torch.device) -> AbstractContextManager[object]:
    """Return a context for the pixels: on a GPU they run beside the decoding, and no step waits for them."""
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def _described(error: ImageError | None) -> dict[str, str] | None:
    return None if error is None else {"type": type(error).__name__, "message": str(error), "hint": error.hint}


@contextmanager
def open_engine(config: RunConfig) -> Iterator[Elastic]:
    """Load the backbone that a configuration names and put an engine around it, for as long as the context lasts."""
    backbone = load_backbone(config)
    yield Elastic(lambda n_rows: Engine(backbone, config, n_rows), pick_batch_size(config, backbone))
