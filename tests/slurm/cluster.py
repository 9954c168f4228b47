"""A real SLURM cluster on this machine, for one test: Debian's munged, slurmctld and two slurmd
with two pretended GPUs each.

All its files lie in one folder; it has ports and a munge socket of its own, so it does not meet a
SLURM that is there already.
"""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = ("node1", "node2")
_READY = {"idle", "mix", "alloc"}
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire is also how long a requeued job waits before it starts again (default 120 s)
AuthInfo=socket={folder}/run/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
PropagateResourceLimits=NONE
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MinJobAge=3600
SlurmdTimeout=60
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES DefaultTime=10 MaxTime=60 \\
  PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=ALL DefaultTime=10 MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""


def obstacle() -> str:
    """Say why there can be no cluster here; "" when there can."""
    absent = [
        program
        for program in PROGRAMS
        if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    ]
    if os.geteuid() != 0:
        return "a SLURM cluster needs root"
    return (
        f"not installed: {', '.join(absent)} (apt-get install munge slurmctld slurmd slurm-client)"
        if absent
        else ""
    )


class Cluster:
    """The daemons, as children of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH", "SRUN"))
        }
        self.environ |= {
            "SLURM_CONF": f"{folder}/slurm.conf",
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
        }

    def start(self) -> None:
        for name in ("munge", "run", "state", "log", "dev", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "munge").chmod(0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self._configure()
        munge = [f"--{name}={self.folder}/{path}" for name, path in self._munge_files()]
        self._run("munged", "munged", "--foreground", "--force", *munge)
        wait_until(lambda: (self.folder / "run" / "munge.socket").exists(), 10)
        self._run("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        wait_until(lambda: all(state in _READY for state in self.node_states().values()), 20)

    def _munge_files(self) -> list[tuple[str, str]]:
        run = [
            (name, f"run/munge.{name.removesuffix('-file')}")
            for name in ("socket", "pid-file", "seed-file")
        ]
        return [("key-file", "munge/key"), ("log-file", "log/munged.log"), *run]

    def _configure(self) -> None:
        port, host = _free_ports(len(NODES) + 1), socket.gethostname().partition(".")[0]
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + i} "
            "CPUs=2 RealMemory=2000 Gres=gpu:2"
            for i, node in enumerate(NODES, start=1)
        ]
        conf = _CONF.format(host=host, port=port, folder=self.folder, nodes="\n".join(lines))
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self._devices()}[0-1]\n")

    def _devices(self) -> str:
        """GPUs must be character devices: twins of /dev/null, or terminals where those may not be
        made.
        """
        try:
            for i in (0, 1):
                os.mknod(self.folder / "dev" / f"gpu{i}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except OSError:
            return "/dev/tty"
        return f"{self.folder}/dev/gpu"

    def start_node(self, node: str) -> None:
        self._run(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """Pull the plug: the daemon and everything that runs on the node."""
        self.daemons.pop(node).kill()
        jobs = self.processes(f"SLURMD_NODENAME={node}")
        for pid in [
            *_step_daemons(jobs),
            *jobs,
        ]:  # these first: they would tell of the jobs' deaths
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # What the controller finds out by itself after SlurmdTimeout.
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=killed")

    def node_states(self) -> dict[str, str]:
        lines = self.ask("sinfo", "-h", "-N", "-o", "%N %t").split("\n")
        return dict(line.split() for line in lines if line)

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode:
            raise OSError(f"{command}: {done.stderr}")
        return done.stdout

    def job_states(self, job: str) -> dict[str, str]:
        """Return the state of each task of an array (or of the one job) by its number."""
        lines = self.ask("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%K %T").split("\n")
        return dict(line.split() for line in lines if line)

    def signal(self, job: str, name: str) -> None:
        """Signal a batch script as `#SBATCH --signal=B:` does."""
        # scancel 22.05 delivers it, but while others of the array are pending it tries
        # again 5 s later: stopped before that.
        command = ["scancel", "--batch", f"--signal={name}", job]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=self.environ, capture_output=True, timeout=2, check=True)

    def processes(self, variable: str) -> list[int]:
        """Return the processes of this cluster's jobs that have a variable in their environment."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                variables = path.read_bytes().split(b"\0")
                if (
                    f"SLURM_CONF={self.folder}/slurm.conf".encode() in variables
                    and variable.encode() in variables
                ):
                    found.append(int(path.parent.name))
        return found

    def stop(self) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.ask("scancel", "--full", "--signal=KILL", "--user=root")
        for node in NODES:
            if node in self.daemons:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    self.kill_node(node)
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()

    def _run(self, name: str, *command: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    # A socket's path may have 107 characters: not pytest's own folder.
    folder = Path(
        subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
    )
    folder.chmod(0o755)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"still waiting after {seconds} s"
        time.sleep(0.2)


def _step_daemons(jobs: list[int]) -> set[int]:
    found = set()
    for pid in jobs:
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd":
                found.add(parent)
    return found


def _free_ports(count: int) -> int:
    """Return the first of `count` free ports in a row."""
    own = (
        20000 + os.getpid() * 8 % 12000
    )  # below the ports that the kernel gives out, and not those of a cluster beside this one
    for first in range(own, own + 800, 8):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise OSError("no free ports")
