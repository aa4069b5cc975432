"""Prepares the fleet of a run of `up`: its NICs, its secrets and the files that its services read."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands.up.run import Run
from fabrictime.runtime.processors import usable_processors
from fabrictime.testbed.processes.scheduling_priority import keep_priority, raise_session

if TYPE_CHECKING:
    from schemas.topology import TopologyFile

_KEY_BYTES: Final = 32
FABRIC_PPS_PER_CPU: Final = 1200.0
MIN_PPS: Final = 50.0
FLOWS_SHARE: Final = 0.5
"""Probe rates on a fabric of this machine, probes/s: of all NICs together, the minimum per NIC, and the
additional flow probes per NIC."""
FEW_CPUS: Final = 2
FEW_CPUS_FLUSH_MS: Final = 100
"""Between two batches of a NIC of a fabric on so few processors, which all agents and the workers share."""


def print_line(line: str) -> None:
    """Print a line of progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def make_fleet(run: Run, stack: contextlib.ExitStack) -> None:
    """Find the NICs; for the packet-forwarding testbed, enter the namespaces and build it."""
    kind = run.config.up.fleet
    if kind == "fabric":
        from fabrictime.testbed.processes import userns

        restore, restore_session = keep_priority(), raise_session()
        stack.callback(restore_session)
        try:
            userns.enter()
        except userns.NamespacesDenied as denied:
            restore()
            restore_session()
            print_line(f"no fabric here: {denied}; probing between loopback addresses instead")
            kind = "loopback"
        else:
            from fabrictime.testbed.control import Testbed, socket_path

            began_s = time.monotonic()
            testbed = Testbed(run.config.fabric, socket_path(run.directory), run.config.flows.socket)
            run.fabric = stack.enter_context(testbed).fabric
            testbed.reported_moves.append(partial(_write_topology, run))
            shape = run.config.fabric
            print_line(
                f"fabric ready, {shape.hosts} hosts, {shape.leaves} leaves and {shape.spines} spines, "
                f"{time.monotonic() - began_s:.1f} s"
            )
    from fabrictime.runtime import fleet

    if run.fabric is not None:
        run.nics = fleet.fabric_nics(run.fabric)
    elif kind == "loopback":
        run.nics = fleet.loopback_nics(run.config.up.loopback_nics)
    elif fleet.sim_settings(kind) is not None:
        kind = fleet.SIM
        # from here on, so that the clocks are known here too
        run.config = run.config.replaced({"sim": {"clock_epoch_ns": time.time_ns()}})
        run.nics = fleet.sim_nics(run.config.sim)
        print_line(f"simulated fleet of {len(run.nics)} NICs; faults: fabrictime sim fault")
    elif kind != "none":
        run.nics = run.nics or fleet.file_nics(Path(kind), fleet.host_name(run.config))
    run.nics = fleet.with_clocks(run.nics, run.config.up.clocks)
    run.fleet = kind


def make_secrets(run: Run) -> None:
    """Create the probe key if it is missing and local, and write the settings of the child processes."""
    from fabrictime.runtime.fleet import local_fleet, write_nics

    key = run.config.probes.key_file
    if key.parent == run.directory / "secrets" and not key.exists():
        with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_hex(_KEY_BYTES).encode())
    nics = local_fleet(run.config)
    write_nics(nics, run.nics)
    changes: dict[str, dict[str, Any]] = {"up": {"fleet": str(nics)}}
    probes: dict[str, Any] = {}
    if run.config.probes.topology_file is None and (run.fabric is not None or run.simulated):
        probes["topology_file"] = str(_write_topology(run))
    if run.fabric is not None:
        given_keys, carried_pps = run.config.tables.get("probes", {}), _rate_for(len(run.nics))
        if "rate_pps" not in given_keys:
            probes["rate_pps"] = carried_pps
        if "flow_pps" not in given_keys:
            probes["flow_pps"] = min(run.config.probes.flow_pps, carried_pps * FLOWS_SHARE)
        if "flush_ms" not in given_keys and usable_processors() <= FEW_CPUS:
            probes["flush_ms"] = FEW_CPUS_FLUSH_MS
    if probes:
        changes["probes"] = probes
    shards = {nic.shard for nic in run.nics}
    if len(shards) == 1 and "default_shard" not in run.config.tables.get("streams", {}):
        # windows before the first announcement are of the fleet's shard too, not of one that never returns
        changes |= {"streams": {"default_shard": shards.pop()}}
    run.config = run.config.replaced(changes)
    settings_file(run).write_text(run.config.dump(), encoding="utf-8")


def workers_here() -> int:
    """Return the number of workers for this machine: 1 on few CPUs, else 2.

    A second worker without a free CPU costs a third of a CPU for nothing.
    """
    return 1 if usable_processors() <= FEW_CPUS else 2


def _rate_for(nics: int) -> float:
    """Return the probes per second and NIC that this machine can carry for a testbed of `nics` NICs.

    For each probe it forwards the packet at every hop, in both directions.
    """
    from producers.settings import ProbeSettings

    cpus = usable_processors()

    default: float = ProbeSettings.model_fields["rate_pps"].default
    return max(MIN_PPS, min(default, cpus * FABRIC_PPS_PER_CPU / nics))


def _write_topology(run: Run) -> Path:
    """Write the testbed's names, cables and rates as an operator's topology file; return its path."""
    path = run.directory / "run" / "topology.json"
    topology = _topology_of(run)
    if topology is not None:
        new = path.with_suffix(".new")
        new.write_text(topology.model_dump_json(), encoding="utf-8")
        new.replace(path)  # a reader sees the old file or the new one
    return path


def _topology_of(run: Run) -> TopologyFile | None:
    """Return the topology of a testbed or simulated fabric of this machine; None for other fleets."""
    if run.fabric is not None:
        from fabrictime.testbed.fabric.topology import topology_file

        return topology_file(run.fabric.plan)
    if run.simulated:
        from producers.sim import setup as sim

        return sim.topology_file(sim.fleet_of(run.config.sim))
    return None


def temporary_directory(directory: Path, *, fresh: bool = False) -> Path:
    """Return a directory for files that live as long as the child processes; `fresh` empties it first."""
    path = directory / "run" / "tmp"
    if fresh:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
    return path


def settings_file(run: Run) -> Path:
    """Return the file with the settings of the run's services."""
    return run.directory / "run" / "settings.json"
