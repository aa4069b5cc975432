"""Makes the inventory records of the simulated NICs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from producers.sim.topology import PROBE_PORT
from producers.sim.workload import address_of
from schemas.ids import clock_id, nic_parts
from schemas.records import Nic, Stamp

if TYPE_CHECKING:
    from producers.sim.simulation import Simulation


def nic_announcements(sim: Simulation) -> Iterator[Nic]:
    """Yield the current `Nic` record of every NIC with a running agent, including the simulation's pace."""
    f, now_ns = sim.fleet, sim.system_ns()
    rails = f.shape.rails > 1
    for nic, name in enumerate(f.nic_ids):
        if sim.states.dead.get(nic):
            continue
        host, device = nic_parts(name)
        yield {
            "nic": name,
            "host": host,
            "device": device,
            "shard": sim.settings.shard,
            "rail": int(f.nic_rail[nic]) if rails else None,
            "rack": f"rack{int(f.nic_rack[nic]) + 1}",
            "addresses": [address_of(nic)],
            "probe_port": PROBE_PORT,
            "clock": clock_id(host, f"ptp{int(f.nic_device[nic])}"),
            "stamp": Stamp.HARDWARE,
            "speed_bps": int(f.rate_bps[2 * nic]),
            "mtu_bytes": 4200,
            "run": sim.runs[nic],
            "since_ns": sim.start_ns,
            "announced_ns": now_ns,
            "capabilities": ["probe.udp"],
            "path_ports": sim.probes.path_ports,
            "first_hop": None,
            "slot_ns": sim.probes.pace[0],
            "slot_probes": sim.probes.pace[1],
            "ud": None,
            "stamp_error_ns": 0,
            "networks": [],
            "egress": None,
            "simulation_pace": sim.pace,
        }
