"""Measures memory, processor time and connections of one host's agent with eight NICs.

Two hosts have eight NICs each, one network per NIC, in two network namespaces. Each NIC sends 1,000 requests
a second and answers as many. Only the embedded log runs beside the two agents.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench.operate.install import reason_without_root, run_command, stop_group
from fabrictime.runtime.status import NotReady, read
from schemas.run_module import module_command

NICS: Final = 8
RATE_PPS: Final = 1000
WARM_S: Final = 30.0
MEASURE_S: Final = 20.0
START_S: Final = 180.0
KEYS: Final = ("agent_pss_mb", "agent_cpu_percent", "agent_log_connections")
BYTES_PER_MB: Final = 1e6


class Cost(NamedTuple):
    """Cost of a process: proportional set size, processor seconds, TCP connections to the log."""

    pss_bytes: int
    cpu_s: float
    connections: int
    name: str


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Return the figures of the agent; `quick` measures for a few seconds only."""
    reason = reason_without_root()
    if reason is not None:
        return dict.fromkeys(KEYS, Missing(reason))
    with tempfile.TemporaryDirectory(prefix="fabrictime-agent-") as folder:
        return _measured(Path(folder), progress, quick)


def _measured(folder: Path, progress: Progress, quick: bool) -> dict[str, Value]:
    with _hosts(folder) as namespaces, _log(folder) as port:
        with contextlib.ExitStack() as stack:
            agents = [
                stack.enter_context(_agent(folder, number, netns, port))
                for number, netns in enumerate(namespaces, 1)
            ]
            for agent, log in agents:
                _wait_ready(agent, log)
            progress("both agents are ready")
            time.sleep(WARM_S / 6 if quick else WARM_S)
            processes = _tree(agents[0][0].pid)
            before, began_s = _costs(processes, port), time.monotonic()
            time.sleep(MEASURE_S / 4 if quick else MEASURE_S)
            after, took_s = _costs(processes, port), time.monotonic() - began_s
        cpu_s = sum(cost.cpu_s for cost in after) - sum(cost.cpu_s for cost in before)
        pss_mb = sum(cost.pss_bytes for cost in after) / BYTES_PER_MB
        note = f"{len(processes)} processes"
        progress(f"{note}: {pss_mb:.0f} MB, {100 * cpu_s / took_s:.0f}% of a core")
        for cost in sorted(after, reverse=True):
            progress(f"  {cost.name}: {cost.pss_bytes / BYTES_PER_MB:.1f} MB")
        return {
            "agent_pss_mb": Figure(pss_mb, note=note),
            "agent_cpu_percent": Figure(100 * cpu_s / took_s, note=f"{NICS} NICs x {RATE_PPS} probes/s"),
            "agent_log_connections": Figure(sum(cost.connections for cost in after)),
        }


@contextlib.contextmanager
def _hosts(folder: Path) -> Iterator[tuple[str, ...]]:
    """Make two namespaces with a cable per NIC; yield their paths."""
    names = tuple(f"ft-{folder.name[-8:]}-{number}" for number in (1, 2))
    try:
        for name in names:
            run_command(["ip", "netns", "add", name])
            run_command(["ip", "-n", name, "link", "set", "lo", "up"])
        for nic in range(NICS):
            device = f"eth{nic}"
            peer = ["type", "veth", "peer", device, "netns", names[1]]
            run_command(["ip", "-n", names[0], "link", "add", device, *peer])
            for number, name in enumerate(names, 1):
                address = f"10.{80 + nic}.0.{number}/24"
                run_command(["ip", "-n", name, "address", "add", address, "dev", device])
                run_command(["ip", "-n", name, "link", "set", device, "up"])
        yield tuple(f"/run/netns/{name}" for name in names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@contextlib.contextmanager
def _log(folder: Path) -> Iterator[int]:
    """Run the embedded log alone; yield its port."""
    settings = folder / "log.toml"
    settings.write_text(
        f'[up]\nfleet = "none"\nservices = "off"\nweb = false\ndata_directory = "{folder / "log"}"\n'
        "[log]\nport = 0\n[history]\nport = 0\n"
    )
    with _up(folder / "log.out", settings) as (process, output):
        _wait_ready(process, output)
        yield int(_state(folder / "log")["addresses"]["log"].rpartition(":")[2])


def _state(directory: Path) -> dict[str, dict[str, str]]:
    until_s = time.monotonic() + START_S
    while True:
        try:
            return read(directory)
        except NotReady:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def _agent(
    folder: Path, number: int, netns: str, port: int
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run the agent of one host; yield its process and its output."""
    host = f"host{number}"
    fleet, settings = folder / f"{host}.fleet.toml", folder / f"{host}.toml"
    rows = [
        f'[[nics]]\nhost = "{host}"\ndevice = "eth{nic}"\naddress = "10.{80 + nic}.0.{number}"\n'
        f'rail = {nic}\nnetns = "{netns}"\n'
        for nic in range(NICS)
    ]
    fleet.write_text("\n".join(rows))
    settings.write_text(
        f'[up]\nfleet = "{fleet}"\nhost_name = "{host}"\nlog_url = "127.0.0.1:{port}"\n'
        f'data_directory = "{folder / host}"\n[probes]\nrate_pps = {RATE_PPS}\n'
        f'key_file = "{folder / "key"}"\n'
    )
    key = folder / "key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_text("ab" * 32)
    with _up(folder / f"{host}.out", settings) as running:
        yield running


@contextlib.contextmanager
def _up(output: Path, settings: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    with output.open("wb") as stream:
        command = module_command("fabrictime", "up", "--config", str(settings))
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process, output
    finally:
        stop_group(process)


def _wait_ready(process: subprocess.Popen[bytes], output: Path) -> None:
    """Wait until `up` reports that all services are ready. Raises RuntimeError."""
    until_s = time.monotonic() + START_S
    while "ready after" not in output.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError(f"not ready: {output.read_text(errors='replace')[-400:]}")
        time.sleep(0.1)


def _tree(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def _costs(processes: Sequence[psutil.Process], port: int) -> list[Cost]:
    costs = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            connections = [
                entry
                for entry in process.net_connections("tcp")
                if entry.raddr and entry.raddr.port == port and entry.status == psutil.CONN_ESTABLISHED
            ]
            pss_bytes = process.memory_full_info().pss
            name = " ".join(process.cmdline()[-4:])
            costs.append(Cost(pss_bytes, times.user + times.system, len(connections), name))
    return costs
