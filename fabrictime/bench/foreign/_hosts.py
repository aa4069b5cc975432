"""Makes faults on hosts with tools outside of the product: tc, nft, cgroups, signals, and dd.

Each fault is a context: it begins on entry and is undone on exit. Rates and rules are set inside the network
namespaces of the running fabric; processes belong to the job alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final

from fabrictime.testbed.control import ControlClient
from fabrictime.testbed.jobs.mpi import enter_command

_GROUPS: Final = Path("/sys/fs/cgroup")
_TABLE: Final = "foreign"
_PERIOD_US: Final = 100_000


@dataclass(frozen=True)
class Nic:
    """The NIC of a host, and the leaf port at the other end of its cable."""

    host: str
    device: str
    leaf: str
    leaf_port: str


@dataclass(frozen=True)
class Namespaces:
    """The network namespaces of a running fabric."""

    fabric: str
    pid: int
    buffer_bytes: int
    nics: dict[str, Nic]

    def run(self, node: str, *command: str) -> str:
        """Run a command in the network of a host or switch. Raises RuntimeError with its error."""
        entry = [*enter_command(self.pid), "nsenter", f"--net=/run/netns/{self.fabric}-{node}", "--"]
        result = subprocess.run([*entry, *command], capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
        return result.stdout


def namespaces_of(control: ControlClient) -> Namespaces:
    """Return the namespaces of the fabric that answers on its control socket."""
    state = control.ask("show")
    fields = itemgetter("host", "device", "leaf", "leaf_port")
    nics = {nic.host: nic for nic in (Nic(*fields(row)) for row in state["nics"])}
    return Namespaces(state["name"], state["pid"], state["settings"]["buffer_bytes"], nics)


@contextlib.contextmanager
def slow_nic(namespaces: Namespaces, host: str, share: float) -> Iterator[None]:
    """Limit the rate at which a host sends to a `share` of its link's rate."""
    device = namespaces.nics[host].device
    qdiscs = json.loads(namespaces.run(host, "tc", "-j", "qdisc", "show", "dev", device))
    options = next(row["options"] for row in qdiscs if row["kind"] == "tbf" and row.get("root"))
    rate_bps, burst = 8 * int(options["rate"]), int(options["burst"])
    limit = str(namespaces.buffer_bytes)

    def change(new_bps: float) -> None:
        rate = ("rate", f"{new_bps:.0f}bit", "burst", str(burst), "limit", limit)
        namespaces.run(host, "tc", "qdisc", "change", "dev", device, "root", "tbf", *rate)

    change(rate_bps * share)
    try:
        yield
    finally:
        change(rate_bps)


@contextlib.contextmanager
def delay(namespaces: Namespaces, host: str, ms: int) -> Iterator[None]:
    """Delay the packets that a host sends; needs netem in the kernel."""
    device = namespaces.nics[host].device
    place = ("dev", device, "parent", "1:1")
    namespaces.run(host, "tc", "qdisc", "add", *place, "netem", "delay", f"{ms}ms")
    try:
        yield
    finally:
        namespaces.run(host, "tc", "qdisc", "del", *place)


@contextlib.contextmanager
def loss(namespaces: Namespaces, node: str, permille: int) -> Iterator[None]:
    """Drop a share of the packets that a host or a switch receives, at random."""
    chain = "{ type filter hook prerouting priority -400; }"
    rule = "drop" if permille >= 1000 else f"numgen random mod 1000 < {permille} drop"
    table = f"add table inet {_TABLE}; add chain inet {_TABLE} c {chain}; add rule inet {_TABLE} c"
    namespaces.run(node, "nft", f'{table} iifname != "lo" {rule}')
    try:
        yield
    finally:
        namespaces.run(node, "nft", f"delete table inet {_TABLE}")


@contextlib.contextmanager
def dead_nic(namespaces: Namespaces, host: str) -> Iterator[None]:
    """Drop all packets that a host receives or that its leaf receives from the host, with both ports up."""
    nic = namespaces.nics[host]
    chain = "{ type filter hook prerouting priority -400; }"
    table = f"add table inet {_TABLE}; add chain inet {_TABLE} c {chain}; add rule inet {_TABLE} c"
    with loss(namespaces, host, 1000):
        namespaces.run(nic.leaf, "nft", f'{table} iifname "{nic.leaf_port}" drop')
        try:
            yield
        finally:
            namespaces.run(nic.leaf, "nft", f"delete table inet {_TABLE}")


@contextlib.contextmanager
def stopped_in_part(pid: int, stop_s: float, go_s: float) -> Iterator[None]:
    """Stop a process for `stop_s` and resume it for `go_s`, repeatedly."""
    ended = threading.Event()

    def alternate() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                ended.wait(stop_s)
                os.kill(pid, signal.SIGCONT)
                ended.wait(go_s)

    thread = threading.Thread(target=alternate, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def processor_limit(pid: int, share: float) -> Iterator[None]:
    """Limit the processor time of a process by a cgroup, or by signals where cgroups are not writable."""
    quota_us = max(1000, round(share * _PERIOD_US))
    limits = {"cpu.cfs_quota_us": str(quota_us), "cpu.max": f"{quota_us} {_PERIOD_US}"}
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_group("cpu", pid, limits))
        except OSError:
            stack.enter_context(stopped_in_part(pid, 0.1 * (1 - share), 0.1 * share))
        yield


@contextlib.contextmanager
def disk_limit(pid: int, folder: Path, bytes_per_s: int) -> Iterator[None]:
    """Limit the rate at which a process writes to the disk of `folder`. Raises OSError without a
    writable cgroup."""
    number = _disk(folder)
    names = {
        "blkio.throttle.write_bps_device": f"{number} {bytes_per_s}",
        "io.max": f"{number} wbps={bytes_per_s}",
    }
    with _group("blkio", pid, names):
        yield


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process by a cgroup. Raises OSError where cgroups are not writable."""
    with _group("freezer", pid, {"freezer.state": "FROZEN", "cgroup.freeze": "1"}) as group:
        try:
            yield
        finally:
            for name, text in {"freezer.state": "THAWED", "cgroup.freeze": "0"}.items():
                if (group / name).exists():
                    (group / name).write_text(text)


@contextlib.contextmanager
def _group(controller: str, pid: int, contents: dict[str, str]) -> Iterator[Path]:
    """Move a process into a new cgroup, v1 or v2; write `contents` to those of its files that exist."""
    parent = _GROUPS / controller if (_GROUPS / controller).is_dir() else _GROUPS
    group = parent / f"fabrictime-foreign-{os.getpid()}"
    group.mkdir()
    try:
        existing = {name: text for name, text in contents.items() if (group / name).exists()}
        if not existing:
            raise OSError(f"{group}: has none of {', '.join(contents)}")
        (group / "cgroup.procs").write_text(str(pid))
        for name, text in existing.items():
            (group / name).write_text(text)
        yield group
    finally:
        for member in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (parent / "cgroup.procs").write_text(member)
        group.rmdir()


def _disk(folder: Path) -> str:
    """Return the number `major:minor` of a folder's disk; for a partition, the number of the whole disk."""
    device = os.stat(folder).st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    return (place.parent if (place / "partition").exists() else place).joinpath("dev").read_text().strip()


@contextlib.contextmanager
def disk_storm(folder: Path) -> Iterator[None]:
    """Run another program that writes to the disk and syncs continuously."""
    command = f"while :; do dd if=/dev/zero of={folder}/storm bs=256k count=64 oflag=dsync status=none; done"
    child = subprocess.Popen(["sh", "-c", command], start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        (folder / "storm").unlink(missing_ok=True)


def possible(namespaces: Namespaces) -> dict[str, str]:
    """Return the causes that this machine cannot make, each with the reason."""
    missing: dict[str, str] = {}
    for causes, tool in ((("slow NIC", "delay", "two faults"), "tc"), (("loss at a NIC", "dead NIC"), "nft")):
        if shutil.which(tool) is None:
            missing |= dict.fromkeys(causes, f"no {tool}")
    if "loss at a NIC" in missing:
        missing["loss at a spine"] = missing["loss at a NIC"]
    if "delay" not in missing:
        try:
            with delay(namespaces, "h1", 1):
                pass
        except RuntimeError as error:
            missing["delay"] = f"netem: {error}".splitlines()[0]
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        for cause, attempt in (
            ("freeze", frozen(sleeper.pid)),
            ("disk limit", disk_limit(sleeper.pid, Path.cwd(), 1 << 20)),
        ):
            try:
                with attempt:
                    pass
            except OSError as error:
                missing[cause] = f"cgroups: {error}"
        sleeper.kill()
    return missing


def ranks_of(job: str, processes: Path = Path("/proc")) -> dict[int, int]:
    """Return the process id of each rank of a job, found by the environments of processes."""
    pids: dict[int, int] = {}
    for folder in processes.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                values = _variables((folder / "environ").read_bytes())
                if values.get("FABRICTIME_JOB") == job and "OMPI_COMM_WORLD_RANK" in values:
                    pids.setdefault(int(values["OMPI_COMM_WORLD_RANK"]), int(folder.name))
    return pids


def _variables(environ: bytes) -> dict[str, str]:
    rows: Sequence[str] = environ.decode(errors="replace").split("\0")
    return dict(row.split("=", 1) for row in rows if "=" in row)
