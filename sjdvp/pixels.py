"""Images from saved tokens: those that a run folder lacks, or all of them in another folder.

Imports no torch.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sjdvp.config import RunConfig
from sjdvp.errors import FolderError, ImageError
from sjdvp.jobs import ImageResult
from sjdvp.runs.atomic import storage_errors, write_atomic
from sjdvp.runs.folder import OpenRun, RunFolder
from sjdvp.runs.job_queue import Task
from sjdvp.runs.log import ImageKey
from sjdvp.runs.run_json import RunInfo, Wanted, read_run
from sjdvp.runs.sharding import image_file
from sjdvp.runs.signals import stoppable
from sjdvp.runs.tokens import SavedTokens, read_tokens, tokens_files

if TYPE_CHECKING:
    import numpy as np

# The tokens of one image -> its uint8 RGB pixels [H, W, 3]; raises ImageError.
PixelDecoder = Callable[[tuple[int, ...]], "np.ndarray[Any, Any]"]
OpenPixelDecoder = Callable[[RunConfig], AbstractContextManager[PixelDecoder]]


@dataclass(slots=True)
class Decoded:
    """How many images were made from saved tokens, and why others were not."""

    written: int = 0
    failures: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def counting(self, key: ImageKey) -> Iterator[None]:
        """Count the image that the block makes; an ImageError does not leave it."""
        try:
            yield
            self.written += 1
        except ImageError as error:
            self.failures.append(f"prompt row {key[0]}, sample {key[1]}: {error}")


Tell = Callable[[Decoded], None]


def complete_run(root: Path, open_decoder: OpenPixelDecoder, tell: Tell) -> Decoded:
    """Make the images that the run folder `root` lacks and whose tokens are saved.

    They get the files and log rows of a run whose pixels did not fail. `open_decoder` gets the
    settings of the run, once for each image size, when there is an image to make; `tell` is called
    after each image. Raises FolderError, BusyError when the run is under way, StorageError,
    Interrupted.
    """
    info, decoded = RunFolder.read(root).info, Decoded()
    files_of(root)
    config = info.config()
    with stoppable(), ExitStack() as opened:

        @cache
        def decoder(size: tuple[int, int] | None) -> PixelDecoder:
            own = config_of(info)
            if size is not None:
                own = replace(own, model=replace(own.model, width=size[0], height=size[1]))
            return opened.enter_context(open_decoder(own))

        for wanted in info.wanted:
            with _reopened(root, config, wanted, info) as run, run.writer() as writer:
                for task in _without_pixels(run, wanted):
                    with decoded.counting((task.job.index, task.job.sample)):
                        assert task.job.tokens is not None
                        start = perf_counter()
                        image_HWC = decoder(task.job.size)(task.job.tokens)
                        stats = {"pixels_s": perf_counter() - start}
                        writer.save(task, ImageResult(task.job, image_HWC, stats))
                    tell(decoded)
    return decoded


def write_images(source: Path, out: Path, decoder: PixelDecoder, tell: Tell) -> Decoded:
    """Write the images of a run folder's or one file's tokens as PNG files into the folder `out`.

    The tokens of an image that was generated again are those in its last log row, or the last in a
    file that lies in no run folder. `tell` is called after each image. Raises FolderError,
    StorageError, Interrupted.
    """
    decoded, files = Decoded(), files_of(source)
    last = _last_tokens(source, files)
    copies = _copies(source, last)
    with storage_errors(str(out)):
        out.mkdir(parents=True, exist_ok=True)
    with stoppable():
        for saved in (saved for file in files for saved in read_tokens(file)):
            if last.get(saved.key) == saved.token_sha256:
                with decoded.counting(saved.key):
                    _write(saved, out / _name(saved.key, copies), decoder)
                tell(decoded)
    return decoded


def files_of(source: Path) -> list[Path]:
    """Return the tokens files of a run folder, or the file itself; raises FolderError for none."""
    files = tokens_files(source) if source.is_dir() else [source]
    if not files:
        raise FolderError(
            f"{source} has no image tokens", "sjdvp generate --save-tokens saves them"
        )
    return files


def config_of(info: RunInfo) -> RunConfig:
    """Return the settings of a run, with the revision of its weights."""
    config = info.config()
    revision = info.revision or config.model.revision
    return replace(config, model=replace(config.model, revision=revision))


@contextlib.contextmanager
def _reopened(root: Path, config: RunConfig, wanted: Wanted, info: RunInfo) -> Iterator[OpenRun]:
    """Open a run folder for the images that one of its commands asked for."""
    run = replace(config.run, num_images_per_prompt=wanted.images_per_prompt)
    config = replace(config, run=replace(run, seed=None, save_tokens=wanted.tokens))
    with RunFolder.open(root, config, None, wanted=wanted, image_seed=info.image_seed) as opened:
        yield opened


def _without_pixels(run: OpenRun, wanted: Wanted) -> Iterator[Task]:
    plan = run.plan(wanted, need_files=True)
    for prompt in run.folder.prompts():
        yield from (task for task in plan.tasks(prompt) if task.job.tokens is not None)


def _last_tokens(source: Path, files: list[Path]) -> Mapping[ImageKey, str | None]:
    """Return the digest of the tokens that count, for each image."""
    root = source if source.is_dir() else source.parent
    if read_run(root) is not None:
        return {key: entry.token_sha256 for key, entry in RunFolder.read(root).log().items()}
    return {saved.key: saved.token_sha256 for file in files for saved in read_tokens(file)}


def _copies(source: Path, last: Iterable[ImageKey]) -> dict[int, int]:
    """Return the number of images of each prompt row: the names of the images depend on it."""
    copies: dict[int, int] = {}
    for index, sample in last:
        copies[index] = max(copies.get(index, 1), sample + 1)
    root = source if source.is_dir() else source.parent
    info = read_run(root)
    if info is None:
        return copies
    most = max(wanted.images_per_prompt for wanted in info.wanted)
    known = RunFolder(root, info).prompts()
    return copies | {prompt.index: prompt.copies(most) for prompt in known}


def _name(key: ImageKey, copies: Mapping[int, int]) -> str:
    return Path(image_file(*key, copies[key[0]])).name


def _write(saved: SavedTokens, path: Path, decoder: PixelDecoder) -> None:
    from sjdvp.runs.writer import encode_png  # Pillow, which a wrong command does not need

    write_atomic(path, encode_png(decoder(saved.decode()), {}))
