"""`sjdvp slurm`: write and submit a job array, show its status, submit missing shards again."""

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sjdvp.errors import ConfigError, SlurmError
from sjdvp.text import counted
from sjdvp_cli.generate import Rows, make_request
from sjdvp_cli.options import arguments, option, takes_options
from sjdvp_cli.prompts import Reading, Source
from sjdvp_cli.settings import Settings
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.generate import Request
    from sjdvp.slurm.queue import QueuedTask, ShardState
    from sjdvp.slurm.script import ArrayJob

_array, _task = option("Array"), option("Each task")
_SHARDS = "Number of tasks; each should run for 10 minutes or more."
_CLUSTER = "default of the cluster"


@dataclass(frozen=True, slots=True)
class Array:
    """The job array, and whether it is submitted."""

    out: Annotated[
        Path | None,
        _array(
            "--out",
            "-o",
            metavar="DIR",
            help="Run folder; scripts and logs go to DIR/slurm.",
            show_default="none",
        ),
    ] = None
    shards: Annotated[
        int | None, _array("--shards", metavar="N", min=1, help=_SHARDS, show_default="none")
    ] = None
    at_once: Annotated[
        int | None,
        _array(
            "--at-once",
            metavar="N",
            min=1,
            help="Tasks that may run at the same time.",
            show_default="no limit",
        ),
    ] = None
    submit: Annotated[
        bool,
        _array("--submit", help="Submit the array, and a job that checks the folder after it."),
    ] = False
    missing: Annotated[
        bool,
        _array(
            "--missing",
            help="With --submit: submit only the shards with missing images.",
        ),
    ] = False
    as_json: Annotated[
        bool, _array("--json", help="Print one JSON object on stdout at the end.")
    ] = False


@dataclass(frozen=True, slots=True)
class TaskResources:
    """What each task asks of the cluster."""

    gpus: Annotated[int, _task("--gpus", metavar="N", min=0, help="GPUs.")] = 1
    cpus: Annotated[
        int | None, _task("--cpus", metavar="N", min=1, help="CPU cores.", show_default=_CLUSTER)
    ] = None
    memory: Annotated[
        str | None,
        _task("--mem", metavar="SIZE", help="Memory, such as 32G.", show_default=_CLUSTER),
    ] = None
    time: Annotated[
        str | None,
        _task(
            "--time",
            metavar="LIMIT",
            help="Time limit, such as 4:00:00; a task that reaches it is requeued.",
            show_default=_CLUSTER,
        ),
    ] = None
    partition: Annotated[
        str | None,
        _task("--partition", metavar="NAME", help="Partition.", show_default=_CLUSTER),
    ] = None
    account: Annotated[
        str | None, _task("--account", metavar="NAME", help="Account.", show_default=_CLUSTER)
    ] = None
    more: Annotated[
        list[str] | None,
        _task(
            "--sbatch",
            metavar="OPTION",
            help="Any other option of sbatch, as --sbatch=--qos=high; may be repeated.",
            show_default="none",
        ),
    ] = None


@takes_options
def command(
    source: Source,
    reading: Reading,
    rows: Rows,
    settings: Settings,
    array: Array,
    asked: TaskResources,
    action: Annotated[
        Literal["write", "status"],
        typer.Argument(metavar="write|status", help="Write a job array, or show its status."),
    ] = "write",
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Run folder, instead of --out.", show_default=False),
    ] = None,
) -> int:
    """Write a SLURM job array, submit it, or show its status."""
    out = folder or array.out
    if out is None:
        raise ConfigError(
            "slurm needs a run folder",
            "for example --out images, or: sjdvp slurm status images",
        )
    if action == "status":
        return _status(out, as_json=array.as_json)
    if array.missing:
        return _send_missing(out, source, array)
    flags = [*arguments(source), *arguments(reading), *arguments(rows), *arguments(settings)]
    job = _job(out, flags, array, asked)
    if source.is_stdin:
        raise ConfigError("a job array cannot read its prompts from stdin", "write them to a file")
    config, shard = settings.resolve().config, f"0/{job.shards}"
    _check(job, make_request(source, reading, rows, config, out, shard), submit=array.submit)
    return _write(job, array)


def _write(job: "ArrayJob", array: Array) -> int:
    from sjdvp.slurm.script import submit_command, write_scripts

    out = job.out
    script = write_scripts(job)
    if array.submit:
        return _send(
            out,
            list(range(job.shards)),
            f"%{job.at_once}" if job.at_once else "",
            as_json=array.as_json,
        )
    typer.echo(
        json.dumps({"script": str(script), "shards": job.shards}) if array.as_json else str(script)
    )
    typer.echo(
        f"sjdvp: {counted(job.shards, 'shard')}; to submit: {submit_command(out)}",
        err=True,
    )
    return 0


def _job(out: Path, flags: list[str], array: Array, asked: TaskResources) -> "ArrayJob":
    from sjdvp.slurm.script import ArrayJob, Resources

    if array.shards is None:
        raise ConfigError("slurm needs the number of tasks", "for example --shards 8")
    wanted = Resources(
        asked.gpus,
        asked.cpus,
        asked.memory,
        asked.time,
        asked.partition,
        asked.account,
        tuple(asked.more or ()),
    )
    flags = [*flags, "--out", str(out), "--progress", "plain"]
    flags += ["--gpus", "all"] if asked.gpus > 1 else []
    program = (sys.executable, "-m", "sjdvp_cli")
    return ArrayJob(out, array.shards, program, tuple(flags), Path.cwd(), wanted, array.at_once)


def _check(job: "ArrayJob", request: "Request", *, submit: bool) -> None:
    """Raise now what each task would raise, and for an array that the cluster would refuse."""
    from sjdvp.generate import preview
    from sjdvp.slurm.queue import largest_array

    preview(request)
    try:
        most = largest_array()
    except SlurmError:
        if submit:
            raise
        return  # this machine has no SLURM; the script is for another one
    if job.shards > most:
        raise ConfigError(
            f"--shards {job.shards} is more than the {most} tasks of an array here (MaxArraySize)",
            f"give --shards {most} or fewer",
        )


def _send_missing(out: Path, source: Source, array: Array) -> int:
    from sjdvp.slurm.queue import queued_tasks, shard_states
    from sjdvp.slurm.script import read_array

    if not array.submit or source.prompts or source.prompt or array.shards:
        raise ConfigError(
            "--missing submits the script in the run folder as it is and takes no other settings",
            "use: sjdvp slurm --submit --missing -o DIR",
        )
    count, at_once = read_array(out)
    missing = [state.shard for state in shard_states(out, count, queued_tasks()) if state.missing]
    if missing:
        return _send(out, missing, at_once, as_json=array.as_json)
    typer.echo(f"sjdvp: every missing image of {out} is in the queue already", err=True)
    return 0


def _send(out: Path, shards: list[int], at_once: str, *, as_json: bool) -> int:
    from sjdvp.slurm.queue import array_list, remember, submit
    from sjdvp.slurm.script import ARRAY, CHECK, FOLDER

    tasks = array_list(shards)
    job = submit(out / FOLDER / ARRAY, f"--array={tasks}{at_once}")
    remember(out, job, tasks)
    # afterany: afterok would wait for ever after one failed task.
    check = submit(out / FOLDER / CHECK, f"--dependency=afterany:{job}")
    typer.echo(json.dumps({"job": job, "array": tasks, "check": check}) if as_json else job)
    typer.echo(
        f"sjdvp: array job {job} ({counted(len(shards), 'task')}); job {check} checks the folder",
        err=True,
    )
    typer.echo(f"sjdvp: for its status: sjdvp slurm status {shlex.quote(str(out))}", err=True)
    return 0


def _status(out: Path, *, as_json: bool) -> int:
    from sjdvp.slurm.queue import array_list, shard_states
    from sjdvp.slurm.script import read_array, submit_command

    count, _ = read_array(out)
    states = shard_states(out, count, _queue())
    missing = [state.shard for state in states if state.missing]
    if as_json:
        typer.echo(
            json.dumps(
                {"shards": [state.as_json() for state in states], "array": array_list(missing)}
            )
        )
        return 0
    show_table(["shard", "images", "failed", "task", "node"], map(_cells, states))
    if missing:
        typer.echo(f"--array={array_list(missing)}")
    done, expected = (
        sum(state.done for state in states),
        sum(state.expected or 0 for state in states),
    )
    advice = f"; submit {counted(len(missing), 'shard')} again: " if missing else ""
    advice += submit_command(out) if missing else ""
    typer.echo(f"sjdvp: {done}/{expected or '?'} images{advice}", err=True)
    return 0


def _queue() -> "list[QueuedTask]":
    from sjdvp.slurm.queue import queued_tasks

    try:
        return queued_tasks()
    except SlurmError as error:
        typer.echo(f"sjdvp: warning: {error}; showing only what is on disk", err=True)
        return []


def _cells(state: "ShardState") -> list[str]:
    task = state.task
    images = f"{state.done}/{'?' if state.expected is None else state.expected}"
    reason = f" ({task.reason})" if task and task.reason not in ("", "None") else ""
    told = f"{task.job}_{task.task} {task.state}{reason}" if task else "-"
    return [
        str(state.shard),
        images,
        str(state.failed),
        told,
        task.node if task and task.node else "-",
    ]
