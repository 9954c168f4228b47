"""Out of memory: the batch is halved, nothing is lost; alone, the image fails and not the run."""

from collections import deque

import pytest
import torch

from sjdvp.engine.oom import ElasticBatch, is_out_of_memory, must_fit
from sjdvp.errors import DeviceError
from sjdvp.jobs import ImageResult, Job

CPU_SAYS = (
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 9 bytes"
)
JOBS = [Job(i, 0, i, f"prompt {i}") for i in range(20)]


class ListQueue:
    def __init__(self, jobs):
        self.jobs = deque(jobs)

    def take(self, *, wait):
        return self.jobs.popleft() if self.jobs else None

    def report(self, in_progress):
        pass


class Hungry:
    """Runs out of memory with more than `room` images in flight, and on every job of `huge`.

    It yields each image one step late.
    """

    def __init__(self, batch_size, room, huge=(), error=None):
        self.batch_size, self.room, self.huge = batch_size, room, huge
        self.error = error or torch.OutOfMemoryError("CUDA out of memory")

    def generate(self, source):
        decoding_pixels = []
        while True:
            jobs = []
            while (
                len(jobs) < self.batch_size
                and (job := source.take(wait=not jobs and not decoding_pixels)) is not None
            ):
                jobs.append(job)
            if len(jobs) > self.room or any(job.index in self.huge for job in jobs):
                raise self.error
            yield from decoding_pixels
            if not jobs and not decoding_pixels:
                return
            decoding_pixels = [ImageResult(job, None, {"rows": self.batch_size}) for job in jobs]


@pytest.mark.process
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError(CPU_SAYS)]
)
def test_the_batch_is_halved_until_it_fits(error):
    made = []

    def make(batch_size):
        made.append(batch_size)
        return Hungry(batch_size, room=3, error=error)

    images = list(ElasticBatch(make, 8).generate(ListQueue(JOBS)))
    assert made == [8, 4, 2]
    assert sorted(image.job.index for image in images) == list(range(20))
    assert not any(image.error for image in images)


@pytest.mark.process
def test_an_image_too_large_alone_fails_alone():
    images = list(
        ElasticBatch(lambda batch_size: Hungry(batch_size, room=9, huge=(5, 6, 19)), 4).generate(
            ListQueue(JOBS)
        )
    )
    assert sorted(image.job.index for image in images) == list(range(20))
    failed = {image.job.index: image.error for image in images if image.error}
    assert failed.keys() == {5, 6, 19}
    assert "--size" in failed[5]["hint"]


@pytest.mark.process
def test_a_generator_that_cannot_be_made():
    def make(batch_size):
        if batch_size > room:
            raise RuntimeError(CPU_SAYS)
        return Hungry(batch_size, room=9)

    room = 2
    assert len(list(ElasticBatch(make, 16).generate(ListQueue(JOBS)))) == 20
    room = 0
    with pytest.raises(DeviceError, match="not enough memory to generate one image"):
        list(ElasticBatch(make, 16).generate(ListQueue(JOBS)))


def test_other_errors_are_not_swallowed():
    with pytest.raises(RuntimeError, match="shapes"):
        list(
            ElasticBatch(
                lambda batch_size: Hungry(
                    batch_size, room=0, error=RuntimeError("shapes do not match")
                ),
                4,
            ).generate(ListQueue(JOBS))
        )
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


@pytest.mark.parametrize(
    "words",
    ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"],
)
def test_what_graphs_and_libraries_say_of_memory(words):
    assert is_out_of_memory(RuntimeError(f"{words} when calling something"))


def test_weights_that_do_not_fit():
    with (
        pytest.raises(DeviceError, match="do not fit into the memory of cpu"),
        must_fit("the weights", torch.device("cpu")),
    ):
        raise RuntimeError(CPU_SAYS)
