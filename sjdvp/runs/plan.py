"""Which images are to be drawn: what is wanted, less what is finished."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sjdvp.jobs import Job
from sjdvp.runs.log import Entry, ImageKey
from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.seeds import image_seed
from sjdvp.runs.sharding import Selection, Shard

State = Literal["todo", "finished", "failed"]


@dataclass(frozen=True, slots=True)
class Task:
    """One image to draw, and what its row needs to know beside the job."""

    prompt: Prompt
    job: Job
    attempt: int  # from 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of one process. A pure function of the log and the request, so that running again goes on where it stopped."""

    seed: int  # the run's
    images_per_prompt: int
    shard: Shard
    selection: Selection
    entries: Mapping[ImageKey, Entry]
    finished: frozenset[ImageKey]
    overwrite: bool
    retry_failed: bool

    def count(self, prompts: Iterable[Prompt]) -> Counter[State]:
        """Count this process's images of `prompts` by their state; `failed` are those that are not tried again."""
        return Counter(state for prompt in prompts for _, state in self._states(prompt))

    def tasks(self, prompt: Prompt) -> list[Task]:
        """Return the images of one prompt that are to be drawn."""
        return [
            self._task(prompt, sample) for sample, state in self._states(prompt) if state == "todo"
        ]

    def _states(self, prompt: Prompt) -> Iterator[tuple[int, State]]:
        if self.selection.takes(prompt.index) and self.shard.takes(prompt.index):
            for sample in range(self.images_per_prompt):
                yield sample, self._state((prompt.index, sample))

    def _state(self, key: ImageKey) -> State:
        if self.overwrite:
            return "todo"
        if key in self.finished:
            return "finished"
        failed = key in self.entries and not self.entries[key].ok
        return "failed" if failed and not self.retry_failed else "todo"

    def _task(self, prompt: Prompt, sample: int) -> Task:
        key = (prompt.index, sample)
        attempt = self.entries[key].attempt + 1 if key in self.entries else 1
        return Task(
            prompt,
            Job(prompt.index, sample, image_seed(self.seed, prompt.index, sample), prompt.text),
            attempt,
        )
