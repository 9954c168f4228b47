"""Fake engines for comparisons: images are noise, the NFE a function of seed and decoder."""

from contextlib import contextmanager
from pathlib import Path

from sjdvp.compare import ComparisonRequest, plan_variants
from sjdvp.jobs import ImageResult
from sjdvp.profiles import resolve
from sjdvp.runs.prompts import inline_prompts
from sjdvp.runs.sharding import Selection
from tests.fake_generator import noise

TEXTS = ("a red apple", "a plum", "a fig", "a red apple")


class Engines:
    """Opens fake engines, and records (decoder, prompt row, sample) of every image in order."""

    def __init__(self) -> None:
        self.diary: list[tuple[str, int, int]] = []
        self.opened = 0

    @contextmanager
    def open(self, configs):
        self.opened += 1
        yield [FakeEngine(config.decoder, self.diary) for config in configs]


class FakeEngine:
    """Its NFE is a pure function of seed and decoder, as an engine's is."""

    def __init__(self, decoder, diary) -> None:
        self.decoder, self.diary = decoder, diary

    def generate(self, source):
        while (job := source.take(wait=True)) is not None:
            self.diary.append((self.decoder.preset, job.index, job.sample))
            nfe = 64 if self.decoder.preset == "ar" else 8 + job.seed % 8 + self.decoder.window
            stats = {
                "nfe": nfe,
                "image_tokens": 64,
                "latency_s": nfe / 100,
                "token_sha256": f"{job.seed:x}",
                "device": "cpu",
            }
            if "fail" in job.prompt:
                yield ImageResult(
                    job, None, stats, {"type": "ImageError", "message": "no image", "hint": ""}
                )
            else:
                yield ImageResult(job, noise(job), stats)


def with_settings(more):
    return resolve("emoji", {"run.seed": 7, "run.batch_size": 1, **more}, {})


def request(
    out: Path, decoders="ar,sjd,sjdvp", texts=TEXTS, sweep=None, **more
) -> ComparisonRequest:
    variants = plan_variants(
        decoders.split(","), sweep or {}, lambda given: with_settings({**more, **given})
    )
    return ComparisonRequest(variants, out, inline_prompts(texts), Selection(None, None))
