"""Builds the parts of a simulated fleet from its settings: network, clocks and topology file."""

from __future__ import annotations

from typing import Any

import numpy as np

from producers.sim.settings import SimSettings
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.ids import link_ends
from schemas.topology import CableEntry, NodeEntry, TopologyFile


def fleet_of(settings: SimSettings) -> Fleet:
    """Return the network for these settings. Raises ValueError if no shape has that many NICs."""
    s = settings
    return Fleet(
        Shape.of(
            s.nics,
            rate_bps=s.rate_bps,
            fabric_rate_bps=s.fabric_rate_bps,
            oversubscription=s.oversubscription,
        ),
        s.seed,
    )


def draw_clocks(settings: SimSettings, nics: int, start_ns: int) -> list[dict[str, Any]]:
    """Draw each NIC's clock from the settings' seed; return the parameters for `ClockSettings`.

    It drifts from the settings' epoch on, or from `start_ns` if the settings have none.
    """
    s, rng = settings, np.random.Generator(np.random.SFC64([settings.seed, 5]))
    offset = rng.integers(-s.clock_offset_max_ns, s.clock_offset_max_ns + 1, nics).tolist()
    drift = rng.uniform(-s.clock_drift_max_ppb, s.clock_drift_max_ppb, nics).tolist()
    seed = rng.integers(0, 2**62, nics).tolist()
    return [
        {
            "offset_ns": offset[i],
            "drift_ppb": drift[i],
            "epoch_ns": s.clock_epoch_ns or start_ns,
            "seed": seed[i],
            "step_ns": 0,
            "step_at_ns": 0,
            "wander_ppb_per_sqrt_s": s.clock_wander_ppb_per_sqrt_s,
        }
        for i in range(nics)
    ]


def topology_file(fleet: Fleet) -> TopologyFile:
    """Return the fleet's topology file: nodes, cables and their rates."""
    rails = fleet.shape.rails > 1
    ends = [link_ends(link) for link in fleet.link_ids[::2]]
    leaves = zip(fleet.nic_leaf.tolist(), fleet.nic_rail.tolist(), strict=True)
    rail_of = {f"leaf{leaf + 1}": rail for leaf, rail in leaves}
    return TopologyFile(
        nodes=tuple(
            NodeEntry(name=name, kind=kind, rail=rail_of.get(name) if rails else None)
            for name, kind in fleet.node_kinds.items()
        ),
        links=tuple(
            CableEntry(ends=(near, far), rate_bps=rate)
            for (near, far), rate in zip(ends, fleet.rate_bps[::2].tolist(), strict=True)
        ),
    )
