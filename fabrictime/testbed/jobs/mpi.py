"""Runs unmodified MPI programs on a testbed: Open MPI with ranks on given hosts, each in its host's network.

mpirun runs in the machine's network, and starts each rank through `fabrictime.testbed.jobs.mpi_rank`, which
enters the host's namespace. The profiler of `native/mpi` is preloaded. Rootless and root users can run it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from native import mpi
from schemas.run_module import module_command

_OPTIONS: Final = {
    "plm": "isolated",
    "pml": "ob1",
    "btl": "tcp,self",
    "mpi_yield_when_idle": "1",
}
"""Parameters of Open MPI that allow only TCP between the hosts, although all ranks run on one machine."""


class NoMpi(RuntimeError):
    """MPI or its profiler is missing; `str()` gives the reason in one line."""


def mpi_command(
    fabric: dict[str, Any],
    run_directory: Path,
    hosts: Sequence[str],
    program: Sequence[str],
    *,
    job: str,
    tenant: str | None = None,
    connections: int = 1,
    port: int = 1024,
    congestion: str = "cubic",
    profiled: bool = True,
) -> list[str]:
    """Return the command that runs `program` on a testbed, with a rank for each of `hosts` in this order.

    `fabric`: the result of `show` from the control socket. `run_directory`: folder with the sockets of its
    agents. `connections`: TCP connections between each pair of ranks. `port`: first port at which ranks
    listen; if it is taken, a later one is used. Raises NoMpi, and ValueError for unknown hosts.
    """
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise NoMpi("mpirun: not found (Debian: apt-get install openmpi-bin libopenmpi-dev)")
    try:
        libraries = [*([mpi.library()] if profiled else []), mpi.testbed_library()]
    except FileNotFoundError as error:
        raise NoMpi(str(error)) from None
    nics = _nics(fabric, hosts)
    ranks = [
        {
            "netns": nic["netns"],
            "variables": _variables(nic["host"], run_directory, job, tenant, libraries)
            | {"FABRICTIME_CONGESTION": congestion},
        }
        for nic in nics
    ]
    options = _OPTIONS | {
        # else /tmp/ompi.HOST.0 for every user: each is root in the fabric's namespace
        "orte_tmpdir_base": str(run_directory.resolve() / "mpi"),
        "btl_tcp_if_include": ",".join(sorted({nic["device"] for nic in nics})),
        "btl_tcp_links": str(connections),
        "btl_tcp_port_min_v4": str(port),
    }
    return [
        *enter_command(fabric["pid"]),
        mpirun,
        *("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(len(ranks))),
        *(part for name, value in options.items() for part in ("--mca", name, value)),
        *module_command("fabrictime.testbed.jobs.mpi_rank", json.dumps(ranks), *program),
    ]


def _nics(fabric: dict[str, Any], hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the first NIC of each host; an entry that names a NIC gives this NIC. Raises ValueError."""
    by_name: dict[str, dict[str, Any]] = {}
    for nic in fabric["nics"]:
        by_name.setdefault(nic["host"], nic)
        by_name[nic["nic"]] = nic
    if unknown := [name for name in hosts if name not in by_name]:
        raise ValueError(f"host {unknown[0]!r}: expected hosts of the fabric, such as {min(by_name)}")
    return [by_name[name] for name in hosts]


def _variables(
    host: str, run_directory: Path, job: str, tenant: str | None, libraries: Sequence[Path]
) -> dict[str, str]:
    """Return the environment variables of a rank, for the profiler and the sockets of its host's agents."""
    folder = run_directory.resolve()
    variables = {
        "LD_PRELOAD": ":".join(map(str, libraries)),
        "FABRICTIME_JOB": job,
        "FABRICTIME_HOST": host,
        "FABRICTIME_COLLECTIVES": str(folder / f"collectives-{host}.sock"),
        "FABRICTIME_FLOWS": str(folder / "flows.sock"),
        "FABRICTIME_CONTROL": str(folder / "control.sock"),
    }
    return variables if tenant is None else variables | {"FABRICTIME_TENANT": tenant}


def enter_command(pid: int) -> list[str]:
    """Return a command that enters the namespaces of the testbed's owner and keeps the working directory."""
    ours, owners = (os.stat(f"/proc/{process}/ns/user").st_ino for process in ("self", pid))
    user = [] if ours == owners else ["--user", "--preserve-credentials"]
    return ["nsenter", f"--target={pid}", *user, "--mount", f"--wdns={Path.cwd()}", "--"]
