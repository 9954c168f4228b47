"""`sjdvp slurm`: a prompt file as a job array; how far it is; what is missing, sent again."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sjdvp.errors import ConfigError, SlurmError
from sjdvp_cli.generate import Rows, Source, make_request
from sjdvp_cli.options import Settings, arguments, option, takes_options
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.slurm.queue import QueuedTask
    from sjdvp.slurm.script import ArrayJob
    from sjdvp.slurm.status import ShardState

_array, _task = option("Array"), option("Each task")
_SHARDS = "Tasks; one should draw for 10 minutes or more."


@dataclass(frozen=True, slots=True)
class Array:
    """The array, and whether to send it."""

    out: Annotated[
        Path | None,
        _array("--out", "-o", metavar="DIR", help="Run folder; scripts and logs lie in DIR/slurm."),
    ] = None
    shards: Annotated[int | None, _array("--shards", metavar="N", min=1, help=_SHARDS)] = None
    at_once: Annotated[
        int | None, _array("--at-once", metavar="N", min=1, help="Most tasks that run at a time.")
    ] = None
    submit: Annotated[
        bool, _array("--submit", help="Send it, with a check of the folder after it.")
    ] = False
    missing: Annotated[
        bool,
        _array("--missing", help="With --submit: the script that is there, only shards with gaps."),
    ] = False
    as_json: Annotated[bool, _array("--json", help="One JSON object on stdout at the end.")] = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What each task asks of the cluster."""

    gpus: Annotated[int, _task("--gpus", metavar="N", min=0, help="GPUs (default 1).")] = 1
    cpus: Annotated[int | None, _task("--cpus", metavar="N", min=1, help="CPU cores.")] = None
    memory: Annotated[str | None, _task("--mem", metavar="SIZE", help="Memory, such as 32G.")] = (
        None
    )
    time: Annotated[
        str | None,
        _task("--time", metavar="LIMIT", help="Time limit, such as 4:00:00; resumed after it."),
    ] = None
    partition: Annotated[str | None, _task("--partition", metavar="NAME", help="Partition.")] = None
    account: Annotated[str | None, _task("--account", metavar="NAME", help="Account.")] = None
    more: Annotated[
        list[str] | None,
        _task("--sbatch", metavar="OPTION", help="Any other option: --sbatch=--qos=high."),
    ] = None


@takes_options
def command(
    source: Source,
    rows: Rows,
    settings: Settings,
    array: Array,
    asked: Asked,
    action: Annotated[
        Literal["write", "status"], typer.Argument(help="What to do.", show_default=False)
    ] = "write",
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Run folder.", show_default=False)
    ] = None,
) -> int:
    """Write a job array for SLURM, send it, tell how far it is."""
    out = folder or array.out
    if out is None:
        raise ConfigError(
            "which run folder? --out is missing",
            "for example --out images, or: sjdvp slurm status images",
        )
    if action == "status":
        return _status(out, as_json=array.as_json)
    if array.missing:
        return _send_missing(out, source, array)
    return _write(out, source, rows, settings, array, asked)


def _write(
    out: Path, source: Source, rows: Rows, settings: Settings, array: Array, asked: Asked
) -> int:
    from sjdvp.slurm.script import write_scripts

    job = _job(out, source, rows, settings, array, asked)
    _check(job, source, rows, settings, submit=array.submit)
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
        f"sjdvp: {job.shards} shards; look at it, then send it: sjdvp slurm --submit --missing -o {out}",
        err=True,
    )
    return 0


def _job(
    out: Path, source: Source, rows: Rows, settings: Settings, array: Array, asked: Asked
) -> "ArrayJob":
    from sjdvp.slurm.script import ArrayJob, Resources

    if array.shards is None:
        raise ConfigError("into how many tasks? --shards is missing", "for example --shards 8")
    wanted = Resources(
        asked.gpus,
        asked.cpus,
        asked.memory,
        asked.time,
        asked.partition,
        asked.account,
        tuple(asked.more or ()),
    )
    flags = [
        *arguments(source),
        "--out",
        str(out),
        *arguments(rows),
        *arguments(settings),
        "--progress",
        "plain",
    ]
    flags += ["--gpus", "all"] if asked.gpus > 1 else []
    return ArrayJob(
        out,
        array.shards,
        (sys.executable, "-m", "sjdvp_cli"),
        tuple(flags),
        Path.cwd(),
        wanted,
        array.at_once,
    )


def _check(
    job: "ArrayJob", source: Source, rows: Rows, settings: Settings, *, submit: bool
) -> None:
    """Find now what each task would stumble over, and an array that this cluster refuses."""
    from sjdvp.generate import preview
    from sjdvp.slurm.queue import largest_array

    if source.prompts == "-":
        raise ConfigError(
            "a job array cannot read its prompts from a pipe", "write them to a file first"
        )
    preview(make_request(source, rows, settings.resolve().config, job.out, f"0/{job.shards}"))
    try:
        most = largest_array()
    except SlurmError:
        if submit:
            raise
        return  # written on a machine without SLURM, for one that has it
    if job.shards > most:
        raise ConfigError(
            f"--shards {job.shards}: arrays of this cluster have at most {most} tasks (MaxArraySize)"
        )


def _send_missing(out: Path, source: Source, array: Array) -> int:
    from sjdvp.slurm.queue import queued_tasks
    from sjdvp.slurm.script import read_array
    from sjdvp.slurm.status import shard_states

    if not array.submit or source.prompts or source.prompt or array.shards:
        raise ConfigError(
            "--missing sends the script that is in the folder, as it is",
            "use: sjdvp slurm --submit --missing -o DIR",
        )
    count, at_once = read_array(out)
    missing = [state.shard for state in shard_states(out, count, queued_tasks()) if state.missing]
    if missing:
        return _send(out, missing, at_once, as_json=array.as_json)
    typer.echo(f"sjdvp: nothing is missing from {out} that is not in the queue", err=True)
    return 0


def _send(out: Path, shards: list[int], at_once: str, *, as_json: bool) -> int:
    from sjdvp.slurm.queue import array_list, submit
    from sjdvp.slurm.script import ARRAY, CHECK, FOLDER
    from sjdvp.slurm.status import remember

    tasks = array_list(shards)
    job = submit(out / FOLDER / ARRAY, f"--array={tasks}{at_once}")
    remember(out, job, tasks)
    # afterany: afterok would wait for ever behind one failed task
    check = submit(out / FOLDER / CHECK, f"--dependency=afterany:{job}")
    typer.echo(json.dumps({"job": job, "array": tasks, "check": check}) if as_json else job)
    typer.echo(
        f"sjdvp: array job {job} ({len(shards)} tasks), and job {check} checks the folder after it",
        err=True,
    )
    typer.echo(f"sjdvp: how far it is: sjdvp slurm status {out}", err=True)
    return 0


def _status(out: Path, *, as_json: bool) -> int:
    from sjdvp.slurm.queue import array_list
    from sjdvp.slurm.script import read_array
    from sjdvp.slurm.status import shard_states

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
    advice = (
        f"; {len(missing)} shards to send again: sjdvp slurm --submit --missing -o {out}"
        if missing
        else ""
    )
    typer.echo(f"sjdvp: {done}/{expected or '?'} images{advice}", err=True)
    return 0


def _queue() -> "list[QueuedTask]":
    from sjdvp.slurm.queue import queued_tasks

    try:
        return queued_tasks()
    except SlurmError as error:
        typer.echo(f"sjdvp: warning: {error}; only what is on disk is shown", err=True)
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
