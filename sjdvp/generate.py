"""The main job: prompts in, pictures and a log out; safe to interrupt and to run again. Imports no torch."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sjdvp.config import RunConfig
from sjdvp.events import Listener
from sjdvp.jobs import Painter
from sjdvp.runs.shards import Selection, Shard

OpenPainter = Callable[[RunConfig], AbstractContextManager[Painter]]


@dataclass(frozen=True, slots=True)
class Request:
    """What one call of `generate` is asked to do. Exactly one of `prompts`, `inline` and `stdin` gives the prompts."""

    config: RunConfig
    out: Path
    prompts: Path | None = None  # a prompt file or folder
    inline: tuple[str, ...] = ()
    stdin: BinaryIO | None = None  # prompts read line by line as they come
    format: str = "auto"
    column: str | None = None
    shard: Shard = field(default_factory=Shard)
    selection: Selection = field(default_factory=Selection)
    overwrite: bool = False  # draw again what is there already
    retry_failed: bool = True
    fail_fast: bool = False  # stop at the first failed image
    argv: tuple[str, ...] = ()  # stored in run.json


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. `requested` = ok + failed + skipped, and what was left when the run stopped early."""

    requested: int  # images asked of this process
    ok: int  # drawn now
    failed: int  # failed now, or before and not tried again
    skipped: int  # finished by an earlier run
    wall_s: float
    images_per_s: float | None  # ok / wall_s
    nfe_mean: float | None  # over the images drawn now
    accept_rate: float | None  # accepted / drafted, over the images drawn now

    @property
    def finished(self) -> int:
        """Requested images that exist and are valid."""
        return self.ok + self.skipped

    @property
    def exit_code(self) -> int:
        """0 when every requested image exists, else 1."""
        return 0 if self.finished == self.requested else 1

    def as_json(self) -> dict[str, Any]:
        """Return the object of `generate --json`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Preview:
    """What `generate` would do: nothing was written and nothing loaded."""

    requested: int | None  # None: prompts come from a pipe
    done: int
    seed: int | None  # None: would be drawn
    format: str
    skipped_lines: int
    duplicates: int


def preview(request: Request) -> Preview:
    """Check a request as `generate` would (prompts, folder, settings) without writing: the `--dry-run`.

    Raises what `generate` raises before generation.
    """
    raise NotImplementedError


def generate(request: Request, open_painter: OpenPainter, listen: Listener) -> Summary:
    """Draw every requested image that is not on disk yet.

    `open_painter` is called once, after all checks, and only when there is something to draw; a plain Painter fits through
    `contextlib.nullcontext`. `listen` hears RunStarted, Notes, one ImageFinished an image (from another thread, never two calls
    at a time) and RunFinished, which comes also when the run ends by an error or a signal.

    Raises PromptError, ConfigError, FolderError before generation; StorageError when the disk refuses a write; Interrupted after
    SIGINT or SIGTERM (pictures that were complete are saved); PromptError also later, for a pipe with a bad line.
    """
    raise NotImplementedError
