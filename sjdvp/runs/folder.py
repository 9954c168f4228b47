"""The door to a run folder.

`RunFolder.read` is for readers, `RunFolder.open` for the process that generates one shard of it.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sjdvp.config import RunConfig
from sjdvp.errors import FolderError
from sjdvp.runs.atomic import storage_errors
from sjdvp.runs.job_queue import Plan, WithoutPixels
from sjdvp.runs.jsonl import Appender, JsonRow
from sjdvp.runs.locks import (
    FileLock,
    Tell,
    folder_lock,
    is_locked,
    remove_leftovers,
    shard_lock,
)
from sjdvp.runs.log import ImageKey, LogEntry, RowMaker, finished, has_image, log_rows, read_log
from sjdvp.runs.prompts.model import Prompt, PromptSet
from sjdvp.runs.prompts_log import PromptsLog, check_unchanged, read_prompts_log, update_rows
from sjdvp.runs.redo import Kind as RedoKind
from sjdvp.runs.redo import begin_redo, end_redo, find_redo, resumed_redo
from sjdvp.runs.run_json import (
    PickWindow,
    RunInfo,
    Wanted,
    differences,
    first_run,
    given_window,
    read_run,
    settled,
    write_run,
)
from sjdvp.runs.sharding import IMAGES, PROMPTS, RUN, Ranges, Seeds, Shard, log_path, log_paths
from sjdvp.runs.tokens import (
    TokensFile,
    TokensKey,
    finished_as_tokens,
    saved_keys,
    saved_tokens,
)

if TYPE_CHECKING:
    from sjdvp.runs.writer import ImageWriter

CheckModel = Callable[[RunConfig], None]

_WHOLE = Shard()
_SLOW_S = 3.0  # a wait that people are told of


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run folder and its settings, read once."""

    root: Path
    info: RunInfo

    @classmethod
    def read(cls, root: Path) -> "RunFolder":
        """Read the settings of the run folder `root`; raises FolderError when it is not one."""
        info = read_run(root)
        if info is None:
            raise FolderError(
                f"{root} is not a run folder: it has no {RUN}",
                "give the --out folder of sjdvp generate",
            )
        return cls(root, info)

    @staticmethod
    @contextlib.contextmanager
    def open(
        root: Path,
        config: RunConfig,
        prompts: PromptSet | None,
        *,
        wanted: Wanted,
        shard: Shard = _WHOLE,
        argv: Sequence[str] = (),
        pick_window: PickWindow = given_window,
        check_model: CheckModel = lambda config: None,
        tell: Tell = lambda message: None,
        image_seed: int | None = None,
        updates: Ranges = (),
    ) -> Iterator["OpenRun"]:
        """Make or resume the run folder `root` and hold the lock of one shard of it.

        Several processes may open it at the same moment: the first chooses the seed that `config`
        leaves open and picks a window that is `auto`. `prompts` is None for a pipe; those in the
        rows `updates` may have changed. `check_model` is asked before a new folder is made; `tell`
        gets messages about waiting and about what an image file cannot hold. `image_seed` is the
        seed of the only image. A folder whose run has generated nothing is made again when the
        settings differ.

        Raises FolderError when the folder has other settings, listed, or other prompts; BusyError
        when another process holds the shard; StorageError; what `check_model` raises.
        """
        _refuse_foreign(root)
        if not (root / RUN).exists():
            check_model(config)
        _make(root)
        with contextlib.ExitStack() as held:
            with folder_lock(root, tell):
                info = _enter(root, config, prompts, wanted, argv, pick_window, image_seed, updates)
                remove_leftovers(root)
                lock = held.enter_context(shard_lock(root, shard, tell))
            config = settled(config, info.window)
            yield OpenRun(RunFolder(root, info), config, shard, lock, tell)

    def prompts(self) -> Iterator[Prompt]:
        """Yield the prompts of the folder in row order; raises FolderError."""
        return read_prompts_log(self.root) if (self.root / PROMPTS).exists() else iter(())

    def expected(self) -> Iterator[tuple[Prompt, list[int]]]:
        """Yield each prompt that any command asked for, with its samples, in row order."""
        for prompt in read_prompts_log(self.root):
            samples = self.samples(prompt)
            if samples:
                yield prompt, samples

    def samples(self, prompt: Prompt) -> list[int]:
        """Return the samples of a prompt that any command asked for."""
        return sorted({s for wanted in self.info.wanted for s in wanted.samples(prompt)})

    def wants_tokens(self, prompt: Prompt, sample: int) -> bool:
        """Return whether any command asked for the image tokens of an image."""
        return any(w.tokens and sample in w.samples(prompt) for w in self.info.wanted)

    def log(self) -> dict[ImageKey, LogEntry]:
        """Return the last log entry of every image; raises FolderError."""
        return read_log(self.root)

    def rows(self) -> Iterator[tuple[LogEntry, JsonRow]]:
        """Yield every log row with its entry; raises FolderError."""
        return log_rows(self.root)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run folder open for writing: this process holds the lock of its shard."""

    folder: RunFolder
    config: RunConfig  # with a number for the window
    shard: Shard
    lock: FileLock
    tell: Tell

    @property
    def info(self) -> RunInfo:
        """The content of run.json."""
        return self.folder.info

    @property
    def taken_over(self) -> str:
        """A line about a process that stopped without releasing the shard, or ""."""
        left_by = self.lock.left_by
        line = f"{left_by} stopped without releasing shard {self.shard}; taken over"
        return line if left_by else ""

    def plan(
        self,
        wanted: Wanted,
        redo: RedoKind | None = None,
        *,
        retry_failed: bool = True,
        need_files: bool = False,
    ) -> Plan:
        """Return what is left to generate, and begin or resume what is to be generated again."""
        plan = make_plan(
            self.folder.root,
            self.info,
            self.shard,
            wanted,
            redo,
            retry_failed=retry_failed,
            need_files=need_files,
        )
        if plan.redo is not None:
            begin_redo(self.folder.root, self.shard, plan.redo)
        return plan

    def end_redo(self) -> None:
        """Forget what was to be generated again: all of it is there."""
        end_redo(self.folder.root, self.shard)

    def prompts_log(self) -> PromptsLog:
        """Return prompts.jsonl, open for prompts that arrive over time."""
        return PromptsLog(self.folder.root)

    @contextlib.contextmanager
    def writer(self, rank: int = 0) -> Iterator["ImageWriter"]:
        """Open the shard's log and tokens file for writing images."""
        from sjdvp.runs.writer import ImageWriter  # numpy and Pillow, which readers do not need

        root, run = self.folder.root, self.config.run
        with (
            Appender(log_path(root, self.shard)) as log,
            TokensFile(root, self.shard) as tokens,
        ):
            rows = RowMaker(self.config, self.shard, rank)
            copies = run.num_images_per_prompt
            yield ImageWriter(
                root, log, tokens, rows, copies, run.metadata, self.lock.check, self.tell
            )

    def located_config(self) -> RunConfig:
        """Return the settings with paths instead of hub ids, at the revision of the folder.

        That is the revision of its first run, here or on another machine. Raises WeightsError.
        """
        from sjdvp.weights import pin  # slow to import, and not needed when all images exist

        known = self.info.revision
        with _told_when_slow(self.tell, f"downloading {self.config.model.path}"):
            model = pin(replace(self.config.model, revision=known or self.config.model.revision))
            first = known or self.keep_revision(model.revision)
            if first != model.revision:
                model = pin(replace(self.config.model, revision=first))
        return replace(self.config, model=model)

    def keep_revision(self, revision: str | None) -> str | None:
        """Record the revision found, unless another process was first; return the recorded one."""
        if revision is None:
            return None
        root = self.folder.root
        with folder_lock(root):
            plain = RunFolder.read(root).info.plain
            if plain.get("revision") is None:
                plain = write_run(root, {**plain, "revision": revision}).plain
            return str(plain["revision"])


@contextlib.contextmanager
def _told_when_slow(tell: Tell, message: str) -> Iterator[None]:
    timer = threading.Timer(_SLOW_S, tell, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def make_plan(
    root: Path,
    info: RunInfo | None,
    shard: Shard,
    wanted: Wanted,
    redo: RedoKind | None = None,
    *,
    retry_failed: bool = True,
    need_files: bool = False,
) -> Plan:
    """Return what one process has to generate, after the logs in `root`; raises FolderError.

    With `need_files`, images of which the log promises only tokens are not done.
    """
    entries = read_log(root)
    done = finished(root, entries)
    pending = find_redo(root, shard)
    if pending is not None:  # killed between an image and its row, that row is of the image before
        done = {k for k in done if not pending.is_due(k) or has_image(root, entries[k])}
    if not need_files:
        done |= finished_as_tokens(root, entries)
    saved = saved_keys(root)
    if wanted.tokens:
        done = {k for k in done if (k, entries[k].token_sha256) in saved}
    return Plan(
        seeds=info.seeds if info else Seeds(0),
        wanted=wanted,
        shard=shard,
        entries=entries,
        finished=frozenset(done),
        redo=resumed_redo(root, shard, redo, wanted) if redo else None,
        retry_failed=retry_failed,
        without_pixels=_without_pixels(root, done, saved),
        size=info.size if info else (None, None),
    )


def _without_pixels(
    root: Path, done: set[ImageKey], saved: set[TokensKey]
) -> dict[ImageKey, WithoutPixels]:
    """Return the images that are not done and whose tokens, those of the last row, are saved."""
    if all(key in done for key, _ in saved):
        return {}
    last: dict[ImageKey, tuple[LogEntry, JsonRow]] = {}
    for entry, row in log_rows(root):
        key = entry.key
        if key not in done and (key not in last or last[key][0].order <= entry.order):
            last[key] = entry, row
    rows = {(key, entry.token_sha256): row for key, (entry, row) in last.items()}
    return {
        tokens.key: WithoutPixels(rows[tokens.key, tokens.token_sha256], tokens)
        for tokens in saved_tokens(root)
        if (tokens.key, tokens.token_sha256) in rows
    }


def check_fits(
    root: Path,
    config: RunConfig,
    prompts: PromptSet | None,
    image_seed: int | None = None,
    updates: Ranges = (),
) -> RunInfo | None:
    """Check that a request fits the folder; None when it is to be made. Writes nothing.

    Raises FolderError as `RunFolder.open` does.
    """
    _refuse_foreign(root)
    info = _fitting(root, config, image_seed)
    if info is not None and prompts is not None:
        check_unchanged(root, prompts.prompts, updates)
    return info


def _enter(
    root: Path,
    config: RunConfig,
    prompts: PromptSet | None,
    wanted: Wanted,
    argv: Sequence[str],
    pick_window: PickWindow,
    image_seed: int | None,
    updates: Ranges,
) -> RunInfo:
    """Bring the folder's files up to date, holding its lock; the one place that reads run.json."""
    info = _fitting(root, config, image_seed)
    with storage_errors(PROMPTS):
        if info is None:
            (root / PROMPTS).unlink(missing_ok=True)  # of a run that has generated nothing
        _make_images(root)
    if prompts is not None:
        if updates:
            update_rows(root, prompts.prompts, updates)
        with PromptsLog(root) as prompts_log:
            prompts_log.add(prompts.prompts)
    if info is None:
        config = settled(config, pick_window)
        return write_run(root, first_run(config, prompts, argv, wanted, image_seed))
    if wanted in info.wanted:
        return info
    return write_run(root, {**info.plain, "wanted": [*info.plain["wanted"], wanted.as_json()]})


def _make_images(root: Path) -> None:
    """Make the folder of the images, unless it is there or a link to one on another disk."""
    try:
        (root / IMAGES).mkdir(exist_ok=True)
    except FileExistsError as error:
        raise FolderError(
            f"{root / IMAGES} is not a folder, or a link to nothing", "delete it, or mend the link"
        ) from error


def _fitting(root: Path, config: RunConfig, image_seed: int | None) -> RunInfo | None:
    info = read_run(root)
    if info is None:
        return None
    differing = differences(info, config, image_seed)
    if differing and _is_empty(root):
        return None
    if differing:
        raise FolderError(
            f"{root} was made with other settings:\n  " + "\n  ".join(differing),
            "use another --out, or the old settings",
        )
    return info


def _refuse_foreign(root: Path) -> None:
    """Raise FolderError when `root` holds images or logs but no run.json."""
    if not (root / RUN).exists() and (log_paths(root) or any((root / IMAGES).glob("*"))):
        raise FolderError(f"{root} has images or logs but no {RUN}", "use another --out")


def _is_empty(root: Path) -> bool:
    """Return whether there is no log row, no image, and no process at work on the first."""
    with storage_errors(RUN):
        rows = any(path.stat().st_size for path in log_paths(root))
        return not rows and not any((root / IMAGES).glob("[!.]*")) and not is_locked(root)


def _make(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot make the folder {root}: {error}", "use another --out") from error
