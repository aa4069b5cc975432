"""Real, unmodified jobs over verbs, with the queue-pair library loaded: UCX alone, and MPI over UCX.

../test_jobs.py has the expectations."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, "/repo")
import fabric
from actuator import Actuator, until
from delays import Delays
from harness import (
    LIBRARY,
    Program,
    actuator,
    busiest,
    check,
    counts,
    listening,
    main,
    other_than,
    port_of,
    program,
)

HERE = os.path.dirname(os.path.abspath(__file__))
PROFILER = "/repo/native/mpi/libfabrictime-mpi.so"
SLEEPER = "/repo/native/mpi/libfabrictime-testbed.so"
"""Lets ranks that wait sleep: the guest has two processors, and the network needs one."""
MESSAGES, MESSAGE_BYTES = 1_000_000, 4096
ALL_REDUCE = 1
LIMIT_S = 150
CONNECT_S = 50
"""s for two programs to connect: it takes 6 to 14 s here. UCX's handshake by datagrams once never ended."""


def ucx(nic: str) -> dict[str, str]:
    """Have UCX use reliable connections of one NIC, by verbs, and send the data itself.

    UCX connects by datagrams. Their check of the destination takes the packet's type from the completion's
    service level, where mlx5 puts it and Soft-RoCE puts 0: with it, each datagram over IPv4 is dropped
    silently. Each request is signalled, not one of 64, so that delays are those of all messages. The
    transport's own limit is about 4 s, so that a path that stays dead ends the job."""
    return {
        "UCX_TLS": "rc_v,self",
        "UCX_NET_DEVICES": f"rxe_{nic}:1",
        "UCX_IB_GID_INDEX": str(fabric.gid_index(f"rxe_{nic}", fabric.NICS[nic][0])),
        "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
        "UCX_UD_VERBS_TIMEOUT": "120s",
        "UCX_RNDV_THRESH": "inf",
        "UCX_RC_VERBS_TIMEOUT": "500ms",
        "UCX_RC_VERBS_RETRY_COUNT": "6",
        "UCX_RC_VERBS_TX_CQ_MODERATION": "0",
        "UCX_RC_VERBS_RX_QUEUE_LEN": "1024",
        "UCX_UD_VERBS_RX_QUEUE_LEN": "1024",
    }


def perftest(*server: str) -> list[str]:
    """Return UCX's own benchmark: tagged messages, client where a server is named."""
    counted = ["-s", str(MESSAGE_BYTES), "-n", str(MESSAGES), "-w", "10"]
    return ["nice", "-n", "5", "ucx_perftest", "-t", "tag_bw", "-E", "sleep", *counted, *server]


def sender(acting: Actuator, device: str) -> str:
    """Return the key of the device's queue pair that carries the data, once there is one."""

    def sent() -> dict[str, int]:
        reports = list(acting.reports.items())
        return {key: each.get("sent_bytes", 0) for key, each in reports if key.startswith(f"qp:{device}:")}

    until(lambda: max(sent().values(), default=0) > 100_000, f"bytes of {device}", CONNECT_S)
    return max(sent(), key=sent().__getitem__)


@contextmanager
def connected(**environment: str) -> Iterator[tuple[Actuator, list[Program], str]]:
    """Run UCX's benchmark between two NICs; yield the actuator, client and server, and the queue pair's key.

    Programs that have no connection after `CONNECT_S` are started once more; their output is printed.
    """
    for attempt in (1, 2):
        acting = actuator()
        with program(perftest(), None, library=False, **ucx("b0")) as server:
            listening("13337")
            with program(perftest(fabric.NICS["b0"][0]), acting, **ucx("a0"), **environment) as client:
                try:
                    key = sender(acting, "rxe_a0")
                except TimeoutError:
                    lines = [*client.text, *server.text]
                    print(f"attempt {attempt}: no connection: {acting.reports} {lines}", file=sys.stderr)
                    if attempt == 2:
                        raise
                    continue
                yield acting, [client, server], key
                return


def stalled(delays: Delays, key: str, since: int) -> bool:
    """Whether two intervals in sequence have posted requests and no completion."""
    found = [each.posted > 0 and each.completed == 0 for each in delays.of(key, since)]
    return any(one and other for one, other in pairwise(found))


def moved(acting: Actuator, delays: Delays, key: str, times: int = 2) -> dict[str, Any]:
    """Lose silently all on a queue pair's path, move it once its delays show that, and so on."""
    spine = busiest()
    found: dict[str, Any] = {"first_spine": spine, "detected_ms": [], "moved_ms": []}
    for _ in range(times):
        until(lambda: any(each.completed for each in delays.of(key)[-1:]), "completions before the blackhole")
        since, began = len(delays.intervals), time.monotonic()
        fabric.blackhole(spine, "leafa", True)
        until(lambda since=since: stalled(delays, key, since), "stall in the delays")
        noticed, chosen = time.monotonic(), other_than(spine)
        before, since = counts()[chosen], len(delays.intervals)
        answer = acting.order("MOVE", key, port_of(chosen))
        assert answer == f"DONE {port_of(chosen)} SQD", answer
        until(
            lambda since=since: sum(each.completed for each in delays.of(key, since)) > 1,
            "completions on the new path",
        )
        found["moved_ms"].append(round((time.monotonic() - noticed) * 1e3, 1))
        found["detected_ms"].append(round((noticed - began) * 1e3, 1))
        assert counts()[chosen] > before, "packets on the new path"
        fabric.blackhole(spine, "leafa", False)
        spine = chosen
    return found


def measured(delays: Delays, key: str) -> dict[str, Any]:
    """Return what the library measured of a queue pair."""
    seen = delays.of(key)
    return {
        "completed": sum(each.completed for each in seen),
        "bytes": sum(each.bytes for each in seen),
        "min_us": min(each.min_ns for each in seen if each.completed) / 1e3,
        "max_us": max(each.max_ns for each in seen) / 1e3,
        "posted": max(each.posted for each in seen),
    }


@check
def ucx_is_measured_and_survives() -> dict[str, Any]:
    """Debian's UCX, unmodified, through two silent blackholes."""
    delays = Delays(tempfile.mkdtemp())
    with connected(**delays.environment()) as (acting, programs, key):
        found = {"key": key} | moved(acting, delays, key)
        found["alive"] = [each.alive() for each in programs]
        lines = [line.strip() for each in programs for line in each.text]
        found["errors"] = [line for line in lines if "ERROR" in line or "failed" in line]
        return found | {"sent_bytes": acting.sent_bytes[key]} | measured(delays, key)


@check
def ucx_ends_where_nothing_moves_it() -> dict[str, Any]:
    """The same blackhole without a command to the library."""
    with connected() as (_, (client, _), _):
        spine, began = busiest(), time.monotonic()
        fabric.blackhole(spine, "leafa", True)
        until(lambda: any("with error" in line for line in client.text), "error of the transport")
        took_s = time.monotonic() - began
        fabric.blackhole(spine, "leafa", False)
        lines = [line.strip() for line in client.text if "with error" in line]
        return {"error": lines[0], "transport_error_s": round(took_s, 1)}


def rank(nic: str, end: str) -> list[str]:
    """Return the command of one rank, with the libraries in it, on a NIC of its own."""
    variables = ucx(nic) | {
        "LD_PRELOAD": f"{LIBRARY}:{PROFILER}:{SLEEPER}",
        "FABRICTIME_JOB": "train-7",
        "MPI4PY_RC_THREADS": "false",
    }
    setting = [f"{name}={value}" for name, value in variables.items()]
    return ["-n", "1", "env", *setting, sys.executable, f"{HERE}/mpi_job.py", end]


def mpirun(*ranks: list[str]) -> list[str]:
    """Return the command that starts ranks whose messages go by UCX alone."""
    options = {
        "plm": "isolated",
        "oob_tcp_if_include": "lo",
        "pml": "ucx",
        "pml_ucx_tls": "any",
        "pml_ucx_devices": "any",
        "btl": "self",
        "osc": "^ucx",
        "mpi_yield_when_idle": "1",
    }
    parts = [part for name, value in options.items() for part in ("--mca", name, value)]
    command = [
        "nice",
        "-n",
        "5",
        "orterun",
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
        *parts,
    ]
    for number, each in enumerate(ranks):
        command += [":", *each] if number else each
    return command


@check
def mpi_over_ucx_is_recorded_and_survives() -> dict[str, Any]:
    """Debian's Open MPI over UCX: the queue pair of one rank through two silent blackholes."""
    acting, delays = actuator(), Delays(tempfile.mkdtemp())
    socket.sethostname("guest")  # mpirun refuses a machine without a name
    end = f"{tempfile.mkdtemp()}/end"
    command = mpirun(rank("a0", end), rank("b0", end))
    with program(command, acting, library=False, **delays.environment()) as job:
        key = sender(acting, "rxe_a0")
        found: dict[str, Any] = {"key": key, "devices": sorted({each.split(":")[1] for each in acting.flows})}
        found |= moved(acting, delays, key)
        with open(end, "w"):
            found["exit"] = job.end(LIMIT_S)
        found["ranks"] = sorted(line.split()[1:] for line in job.text if line.startswith("rank "))
        found |= measured(delays, key)
        sums = [each for each in delays.operations if each.function == ALL_REDUCE]
        found["all_reduces"] = sorted(Counter(each.pid for each in sums).values())
        found["all_reduce_bytes"] = sorted({each.bytes for each in sums})
        found["longest_ms"] = sorted(round(each.took_ns / 1e6, 1) for each in sums)[-4:]
        return found


if __name__ == "__main__":
    sys.exit(main(LIMIT_S))
