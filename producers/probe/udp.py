"""Runs the UDP probe transport: one NIC's probe engine, its sockets and its thread, which runs no Python."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Mapping, Sequence

from native.core.probe import Engine, Link, Peer, Sockets, TestClock, link_of, open_socket, open_sockets
from producers.inventory.nics import PeerTable, addresses_of, nic_record
from producers.netns import in_netns
from producers.nic_network import read_nic_network
from producers.probe.base import select_peers
from producers.probe.keys import read_key
from producers.probe.reachability import RailReach, group_of, reachable
from producers.probe.schedule import slot_of
from producers.settings import ClockSettings, NicSettings, ProbeSettings
from schemas.ids import nic_id
from schemas.records import Nic

MAX_COLLECT_DELAY_MS = 15.0
MAX_COLLECT_PERIOD_MS = 50.0
"""Maximum collection period. A responder's timestamps are collected at multiples of the period plus the
delay, so that they arrive before the flush at 33 ms."""
MIN_ENGINE_PEERS = 32
MIN_OWN_RAIL = 2
"""Peers on the own rail, if it has as many: rails may be meant to be apart."""


def test_clock(settings: ClockSettings | None) -> TestClock | None:
    """Create a NIC's test clock; None without settings. An `epoch_ns` of 0 stands for the present time."""
    if settings is None:
        return None
    return TestClock(
        offset_ns=settings.offset_ns,
        drift_ppb=settings.drift_ppb,
        wander_ppb_per_sqrt_s=settings.wander_ppb_per_sqrt_s,
        epoch_ns=settings.epoch_ns or time.time_ns(),
        seed=settings.seed,
        step_ns=settings.step_ns,
        step_at_ns=settings.step_at_ns,
    )


test_clock.__test__ = False  # type: ignore[attr-defined]  # pytest collects it by its name otherwise


class UdpTransport:
    """Sends one NIC's probes over UDP, and answers the probes of other NICs."""

    def __init__(self, settings: ProbeSettings, nic: NicSettings) -> None:
        self.settings = settings
        self.nic = nic
        self.name = nic_id(nic.host, nic.device)
        self.since_ns = time.time_ns()
        key = read_key(settings.key_file)
        self.network = read_nic_network(nic)

        def open_all() -> tuple[Sockets, Link]:
            sockets = open_sockets(
                nic.address,
                settings.udp_port,
                settings.first_path_port,
                settings.paths,
                spare=settings.spare_paths,
                device=self.network.device,
            )
            return sockets, link_of(sockets.responder, nic.device)

        sockets, self.link = in_netns(nic.netns, open_all)
        self.port = sockets.port
        self.engine = Engine(
            sockets,
            nic=self.name,
            key=key,
            rate_pps=settings.rate_pps,
            max_pps=settings.max_pps,
            answer_max_pps=settings.answer_max_pps,
            spacing_ns=settings.spacing_ns,
            singles=settings.singles,
            spare=settings.spare_paths,
            flow_pps=settings.flow_pps,
            timeout_ms=settings.timeout_ms,
            overdue_ms=settings.overdue_ms,
            cpu_starved_ms=settings.cpu_starved_ms,
            collect_delay_ms=min(MAX_COLLECT_DELAY_MS, settings.timeout_ms / 4),
            collect_period_ms=min(MAX_COLLECT_PERIOD_MS, settings.timeout_ms / 2),
            max_age_s=settings.max_age_s,
            clock=test_clock(nic.clock),
            device=nic.device if settings.hardware_stamps else None,
            max_peers=max(MIN_ENGINE_PEERS, 3 * settings.peers),
            classes=[(traffic_class.dscp, traffic_class.priority) for traffic_class in settings.classes],
            ecn=settings.ecn,
            device_index=self.network.index,
        )
        self.slot = slot_of(settings)
        self.first_hop: str | None = None
        self.failure: BaseException | None = None
        self.capabilities: list[str] = []
        self.egress: str | None = None
        """Device by which packets were seen to leave, if it belongs to another NIC."""
        self.rails = RailReach()
        self.silent_rails: frozenset[str] = frozenset()
        """Rails that do not answer, so none of their NICs is a peer."""
        self._groups: dict[str, str] = {}
        """Rail of each NIC on another rail, when the peers were last chosen."""
        self._peers_from: tuple[dict[str, tuple[str, int]], frozenset[str]] = ({}, frozenset())
        self._thread = threading.Thread(target=self._run, name=f"probe {self.name}", daemon=True)

    def start(self) -> None:
        """Start answering probes; probing starts when there are peers."""
        self._thread.start()

    def close(self) -> None:
        """Stop the engine and restore the device's timestamp settings."""
        self.engine.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self.engine.close()

    def record(self) -> Nic:
        """Return the NIC's announcement for the inventory, as of now."""
        return nic_record(
            self.nic,
            run=self.engine.run_id,
            probe_port=self.port,
            phc_index=self.engine.phc_index,
            speed_bps=self.link.speed_bps,
            mtu_bytes=self.link.mtu_bytes,
            since_ns=self.since_ns,
            announced_ns=time.time_ns(),
            capabilities=self.capabilities,
            path_ports=self.engine.path_ports,
            first_hop=self.first_hop,
            slot=self.slot,
            networks=self.network.networks,
            egress=self.egress,
        )

    def update_peers(self, table: PeerTable, extra: frozenset[str] = frozenset()) -> int:
        """Choose peers among the living NICs, plus at most as many of `extra`; return the number of peers."""
        alive, own = table.alive(self.nic.shard), self.record()
        groups = group_of(own, alive)
        hosts = {name: record["host"] for name, record in alive.items()}
        self.silent_rails = self.rails.silent(groups, hosts, time.monotonic())
        others = reachable(own, alive, self.network.own_addresses, self.silent_rails)
        contacts = addresses_of(others.values(), self.nic.address)
        contacts.pop(self.name, None)
        if (contacts, extra) == self._peers_from:
            return len(self.engine.peers)
        self._peers_from = (contacts, extra)
        seed = self.settings.peers_seed
        peers = select_peers(self.name, contacts, self.settings.peers, seed, extra)
        own_rail = {name: contact for name, contact in contacts.items() if name not in groups}
        if len(peers.keys() & own_rail.keys()) < MIN_OWN_RAIL:  # the only ones that rails apart can reach
            peers |= select_peers(self.name, own_rail, MIN_OWN_RAIL, seed)
        self._groups = groups
        self.rails.set_peers(peers, time.monotonic())
        self.engine.set_peers([Peer(name, *contact) for name, contact in peers.items()])
        return len(peers)

    @property
    def unproven_peers(self) -> frozenset[str]:
        """Peers on rails from which no NIC has ever answered: the network may not connect these rails."""
        return self.rails.unproven(self._groups)

    def mtu_changed(self) -> bool:
        """Read the device's MTU again; return whether it changed."""
        mtu_bytes = link_of(self.engine.responder_socket, self.nic.device).mtu_bytes
        if mtu_bytes in (None, self.link.mtu_bytes):
            return False
        self.link = Link(self.link.speed_bps, mtu_bytes)
        return True

    def counters(self) -> Mapping[str, float]:
        """Return, by name, the engine's counters of packets and samples."""
        counters: Mapping[str, float] = self.engine.counters()
        return counters

    def open_candidates(self, ports: Sequence[int]) -> list[socket.socket]:
        """Open sockets bound to those of `ports` that are free, configured like the paths' sockets.

        Port 0 means any port. Route traces use the sockets, and the engine may take over some of them.
        """

        def open_all() -> list[socket.socket]:
            sockets = []
            for port in ports:
                try:
                    sockets.append(open_socket(self.nic.address, port, device=self.network.device))
                except OSError as error:
                    if error.errno == errno.EMFILE:
                        break
            return sockets

        return in_netns(self.nic.netns, open_all)

    def _run(self) -> None:
        try:
            self.engine.run()
        except BaseException as error:  # noqa: BLE001  # the service's thread reports it and ends
            self.failure = error
