"""Measures memory, processor time and connections of one host's agent with eight NICs.

Two hosts have eight NICs each, one network per NIC, in two network namespaces. Each NIC sends 1,000 requests
a second and answers as many. Only the embedded log runs beside the two agents.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._fabric import running_up, with_any_ports
from fabrictime.bench.operate.install import cabled_namespaces, reason_without_root
from fabrictime.runtime import status

NICS: Final = 8
RATE_PPS: Final = 1000
WARM_S: Final = 30.0
MEASURE_S: Final = 20.0
NETWORK: Final = 80
"""The NICs' networks are 10.80.0.0/24 and those after it."""
KEYS: Final = ("agent_pss_mb", "agent_cpu_percent", "agent_log_connections")
BYTES_PER_MB: Final = 1e6


class Cost(NamedTuple):
    """Cost of a process: proportional set size, processor time, s, TCP connections to the log."""

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
    with cabled_namespaces(folder, NICS, NETWORK) as namespaces, _log(folder) as port:
        with contextlib.ExitStack() as stack:
            pids = [
                stack.enter_context(_agent(folder, number, netns, port))
                for number, netns in enumerate(namespaces, 1)
            ]
            progress("both agents are ready")
            time.sleep(WARM_S / 6 if quick else WARM_S)
            agent = psutil.Process(pids[0])
            processes = [agent, *agent.children(recursive=True)]
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
def _log(folder: Path) -> Iterator[int]:
    """Run only the embedded log; yield its port."""
    settings = folder / "log.toml"
    settings.write_text(with_any_ports('[up]\nfleet = "none"\nservices = "off"\nweb = false\n'))
    with running_up(["--config", str(settings)], folder / "log", folder / "log.out") as bootstrap:
        yield int(bootstrap.rpartition(":")[2])


@contextlib.contextmanager
def _agent(folder: Path, number: int, netns: str, port: int) -> Iterator[int]:
    """Run the agent of one host; yield the process id of its `up` once all services are ready."""
    host = f"host{number}"
    fleet, settings = folder / f"{host}.fleet.toml", folder / f"{host}.toml"
    rows = [
        f'[[nics]]\nhost = "{host}"\ndevice = "eth{nic}"\naddress = "10.{NETWORK + nic}.0.{number}"\n'
        f'rail = {nic}\nnetns = "{netns}"\n'
        for nic in range(NICS)
    ]
    fleet.write_text("\n".join(rows))
    settings.write_text(
        f'[up]\nfleet = "{fleet}"\nhost_name = "{host}"\nlog_url = "127.0.0.1:{port}"\n'
        f'[probes]\nrate_pps = {RATE_PPS}\nkey_file = "{folder / "key"}"\n'
    )
    key = folder / "key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_text("ab" * 32)
    with running_up(["--config", str(settings)], folder / host, folder / f"{host}.out"):
        yield int(status.read(folder / host)["pid"])


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
