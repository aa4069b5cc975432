"""The probes of the simulated fleet: their paths, schedules and traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from producers.probe.peers import choose_peers, hashes_of
from producers.probe.schedule import fabric_time_ns, schedule_error, schedule_paths
from producers.sim.ecmp import Paths
from producers.trace.route_names import NamedPath
from schemas.records import Leg, PathMap, PathMaps, PathSource, ProbeSchedule
from schemas.topics import PATHS

if TYPE_CHECKING:
    from producers.sim.simulation import Simulation


class SimProbes:
    """The probe paths of one simulation: one group of the kernel per NIC, peer and source port."""

    def __init__(self, sim: Simulation, traces_per_tick: int | None) -> None:
        """Choose every NIC's peers as its prober would, and compute the routes of all its probes.

        `traces_per_tick` limits the number of pairs that are traced in a tick; None sets no limit.
        """
        self._sim = sim
        s, f, kernel = sim.settings, sim.fleet, sim.kernel
        names = f.nic_ids
        hashes = hashes_of(names, s.peers_seed)
        first = s.first_path_port or 9320
        self.path_ports = [first + k for k in range(s.paths)]
        peer_lists = [
            [f.nic_index[peer] for peer in choose_peers(name, names, s.peers, s.peers_seed, hashes)]
            for name in names
        ]
        nic = np.repeat(np.arange(f.nics), [len(peers) * s.paths for peers in peer_lists])
        peer = np.repeat(np.array([peer for peers in peer_lists for peer in peers]), s.paths)
        path = np.tile(self.path_ports, len(nic) // s.paths)
        self._group = (nic, peer, path)
        kernel.set_groups(nic, peer, path)
        self._pairs: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        """For each directed pair, the groups of its requests and the groups of its answers."""
        for g, (a, b) in enumerate(zip(nic.tolist(), peer.tolist(), strict=True)):
            self._pairs.setdefault((a, b), ([], []))[0].append(g)
            self._pairs.setdefault((b, a), ([], []))[1].append(g)
        self._since_ns = np.full((2, len(nic)), self._sim.start_ns, np.int64)
        self._moves = np.zeros((2, len(nic)), np.int64)
        self.legs: tuple[Paths, Paths] = self._find_legs()
        self._traced_legs = self.legs
        self._traces_per_tick = traces_per_tick
        self._to_trace: dict[tuple[int, int], None] = dict.fromkeys(self._pairs)

    def reroute(self) -> None:
        """Compute the routes of all probes again; `retrace` then detects the changed routes."""
        self.legs = self._find_legs()

    def _find_legs(self) -> tuple[Paths, Paths]:
        """Compute the routes of all probes and their answers, pass them to the kernel and return them."""
        nic, peer, path = self._group
        there, back = self._sim.fleet.round_trips(nic, peer, path, self._sim.living())
        self._sim.kernel.set_legs(there.start, there.link, there.reached, back.start, back.link, back.reached)
        return there, back

    @property
    def pace(self) -> tuple[int, int]:
        """Return the ns per probe slot and the paths per slot of planned schedules; (0, 0) without probes."""
        if not self._sim.settings.rate_pps:
            return 0, 0
        probes = 2 if self._sim.settings.spacing_ns else 1
        return round(1e9 * probes / self._sim.settings.rate_pps), 1

    def follow_schedule(self, record: ProbeSchedule) -> None:
        """Make a NIC follow a `ProbeSchedule` on its own clock. NICs of other fleets are ignored.

        Raises ValueError with one line if no prober could follow it.
        """
        nic = self._sim.fleet.nic_index.get(record["nic"])
        if nic is None:
            return
        why = schedule_error(record, self.pace)
        if why:
            raise ValueError(f"probe schedule of {record['nic']}: {why}")
        first, end = np.searchsorted(self._group[0], [nic, nic + 1]).tolist()
        groups = zip(self._group[1][first:end].tolist(), self._group[2][first:end].tolist(), strict=True)
        at = {(self._sim.fleet.nic_ids[peer], port): number for number, (peer, port) in enumerate(groups)}
        now_ns = self._sim.kernel.now_ns
        since_ns = fabric_time_ns(record, self._sim.kernel.clock_ns(nic, now_ns)) - record["begin_ns"]
        paths = [at.get(path, -1) for path in schedule_paths(record)]
        self._sim.kernel.set_schedule(nic, now_ns - since_ns, record["slot_ns"], paths)

    def publish_traces(self) -> None:
        """Publish the pairs that have new or moved paths, up to the limit per tick."""
        limit = self._traces_per_tick or len(self._to_trace)
        for pair in list(self._to_trace)[:limit]:
            del self._to_trace[pair]
            if PATHS.name in self._sim.topic_names and not self._sim.states.dead.get(pair[0]):
                key = ">".join(self._sim.fleet.nic_ids[nic] for nic in pair)
                self._sim.publish(PATHS, key, self._sim.system_ns(), self._path_maps(*pair))

    def _path_maps(self, nic: int, peer: int) -> PathMaps:
        names = self._sim.fleet.link_ids
        rows: list[PathMap] = []
        for leg, groups in enumerate(self._pairs[nic, peer]):
            paths = self.legs[leg]
            for g in groups:
                links = tuple(names[link] for link in paths.of(g).tolist())
                path = NamedPath(links, bool(paths.reached[g]), PathSource.TRACED)
                since_ns, changes = int(self._since_ns[leg, g]), int(self._moves[leg, g])
                rows.append(
                    path.row(
                        int(self._group[2][g]),
                        (Leg.REQUEST, Leg.ANSWER)[leg],
                        since_ns=since_ns,
                        changes=changes,
                    )
                )
        return {
            "nic": self._sim.fleet.nic_ids[nic],
            "peer": self._sim.fleet.nic_ids[peer],
            "shard": self._sim.settings.shard,
            "run": self._sim.runs[nic],
            "traced_ns": self._sim.system_ns(),
            "paths": rows,
        }

    def retrace(self) -> None:
        """Detect the paths that moved since their last trace. They are published from the next tick on."""
        now_ns = self._sim.system_ns()
        for leg in (0, 1):
            moved = np.flatnonzero(_moved(self._traced_legs[leg], self.legs[leg]))
            self._since_ns[leg, moved] = now_ns
            self._moves[leg, moved] += 1
            nic, peer, _ = self._group
            for g in moved.tolist():
                pair = (int(nic[g]), int(peer[g]))
                self._to_trace[pair if leg == 0 else pair[::-1]] = None
        self._traced_legs = self.legs


def _moved(before: Paths, now: Paths) -> NDArray[np.bool_]:
    """Return [groups]: True for paths with other links than before."""
    tables = []
    for paths in (before, now):
        table = np.full((len(paths.reached), 6), -1, np.int32)
        link_counts = np.diff(paths.start)
        row = np.repeat(np.arange(len(link_counts)), link_counts)
        table[row, np.arange(len(paths.link)) - np.repeat(paths.start[:-1], link_counts)] = paths.link
        tables.append(table)
    different: NDArray[np.bool_] = (tables[0] != tables[1]).any(axis=1) | (before.reached != now.reached)
    return different
