"""Sends packets of the NIC's MTU on its paths periodically, to find paths that drop large packets.

`size_checks.py` selects the packets. This module sends on the path's own socket, so that the packets take the
path's route, and reads the answers from the probe engine.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

from native.core.probe import Engine
from producers.probe.flow_targets import PathKey
from producers.probe.size_checks import SMALL_BYTES, SizeChecks, SizeProbe
from schemas.records import PathSize
from schemas.topics import MAX_ELEMENTS

HEADER_BYTES: Final = {socket.AF_INET: 28, socket.AF_INET6: 48}
"""Size of the headers of IP and UDP, bytes, by address family."""
MAX_BYTES: Final = 65_535
REPORT_S: Final = 1.0
"""Interval between reports while no path's result changes."""


class SizeProber:
    """Finds the packet sizes that pass on the paths of one NIC."""

    def __init__(self, engine: Engine, address: str, rate_pps: float, timeout_ms: float) -> None:
        self._engine, self._address = engine, address
        self._checks = SizeChecks(rate_pps, timeout_ms / 1e3, engine.class_dscps)
        self._header_bytes = HEADER_BYTES[socket.AF_INET6 if ":" in address else socket.AF_INET]
        self._report_at_s = 0.0
        self._targets: dict[str, tuple[str, int]] = {}
        self._own_bytes = 0
        self._of_peers: Mapping[str, int | None] = {}

    @property
    def due_s(self) -> float:
        """Monotonic time at which `step` must be called next, s."""
        return self._checks.due_s

    def set_mtus(self, own_bytes: int | None, of_peers: Mapping[str, int | None]) -> None:
        """Set the NIC's own MTU and, by name, its peers' MTUs. Paths are probed with the smaller of both."""
        self._own_bytes, self._of_peers = own_bytes or 0, of_peers
        self._refresh()

    def _refresh(self) -> None:
        """Pass to the size checks the paths that the engine probes now, with their packet sizes."""
        sizes: dict[PathKey, int] = {}
        self._targets = {}
        for peer in self._engine.peers:
            size = min(self._own_bytes, self._of_peers.get(peer.nic) or 0, MAX_BYTES)
            if size <= SMALL_BYTES:
                continue
            self._targets[peer.nic] = (peer.address, peer.port)
            sizes |= dict.fromkeys(((peer.nic, port) for port in self._engine.path_ports), size)
        self._checks.set_paths(sizes)

    def step(self, now_s: float) -> list[PathSize]:
        """Read the answers, send the due packets and return the results to report."""
        self._read_answers()
        for probe in self._checks.step(now_s):
            if not self._send(probe):
                self._checks.on_unsent(probe.seq)
        if not self._checks.is_urgent and now_s < self._report_at_s:
            return []
        self._report_at_s = now_s + REPORT_S
        results = self._checks.take_results(now_s)[:MAX_ELEMENTS]
        self._refresh()
        return results

    def _read_answers(self) -> None:
        names = {target: nic for nic, target in self._targets.items()}
        for hit in self._engine.size_hits():
            if hit.arrived:
                self._checks.on_arrived(hit.seq if hit.seq is not None else 0)
            elif hit.path >= 0:
                mtu_bytes = min(max(hit.mtu_bytes, 0), MAX_BYTES)
                port, peer = self._engine.all_ports[hit.path], names.get(hit.target, "")
                seqs = [hit.seq] if hit.seq is not None else self._checks.pending(peer, port, mtu_bytes)
                for seq in seqs:
                    self._checks.on_too_big(seq, mtu_bytes)

    def _send(self, probe: SizeProbe) -> bool:
        """Send one packet; return whether the kernel accepted it."""
        peer, port = probe.key
        target = self._targets[peer]
        ports = self._engine.all_ports
        if port not in ports:  # the path has another port by now
            return False
        data = self._engine.size_packet(
            (self._address, port), target, peer, probe.seq, probe.size_bytes - self._header_bytes
        )
        return self._engine.send(ports.index(port), data, target, traffic_class=probe.traffic_class)
