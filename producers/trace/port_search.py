"""Traces candidate source ports over separate sockets, to find ports from which probes take other routes."""

from __future__ import annotations

import random
import select
import socket
from collections.abc import Mapping

from native.core.probe import Engine, TraceHit
from producers.settings import ProbeSettings
from producers.trace.sockets import (
    IP_RECVERR,
    IPV6_RECVERR,
    ORIGIN_ICMP,
    ORIGIN_ICMP6,
    TIME_EXCEEDED,
    UNREACHABLE,
    error_of,
    send_trace,
)
from producers.trace.tracer import Trace, TracedFlow, Tracer
from schemas.records import Leg

MAX_READS_PER_QUEUE = 64
MIN_QUOTED_BYTES = 16


class PortSearch:
    """One search for source ports: traces the route from every candidate port to every target peer."""

    def __init__(
        self,
        engine: Engine,
        address: str,
        sockets: list[socket.socket],
        targets: Mapping[str, tuple[str, int]],
        settings: ProbeSettings,
        rng: random.Random,
        *,
        all_peers: bool,
    ) -> None:
        """Start a search. `targets` maps peers to addresses and ports.

        `all_peers`: whether the result decides the source ports of all paths.
        """
        self._engine, self._address = engine, address
        self._sockets: dict[int, socket.socket] = {sock.getsockname()[1]: sock for sock in sockets}
        self._tracer = Tracer(settings.trace_pps, settings.trace_max_hops, rng.getrandbits(32))
        self.all_peers = all_peers
        self.found: dict[int, dict[str, Trace]] = {}
        self._poll = select.poll()
        self._port_by_fd = {sock.fileno(): port for port, sock in self._sockets.items()}
        for sock in sockets:
            self._poll.register(sock, select.POLLIN)
            engine.use_first_class(sock)
            is_ipv6 = sock.family == socket.AF_INET6
            level, option = (socket.IPPROTO_IPV6, IPV6_RECVERR) if is_ipv6 else (socket.SOL_IP, IP_RECVERR)
            sock.setsockopt(level, option, 1)
        for port in self._sockets:
            for name, target in targets.items():
                self._tracer.schedule(TracedFlow(Leg.REQUEST, name, port, target, port))

    @property
    def routes(self) -> dict[int, dict[str, tuple[str | None, ...]]]:
        """By port, then peer, the hops of each trace that reached the peer and had a router's answer."""
        return {
            port: {name: trace.hops for name, trace in traces.items() if trace.reached and any(trace.hops)}
            for port, traces in self.found.items()
        }

    def tick(self, now_s: float) -> bool:
        """Receive answers and send packets; return whether all ports are traced."""
        for fd, _ in self._poll.poll(0):
            port = self._port_by_fd[fd]
            self._read(port, self._sockets[port])
        packets, traces = self._tracer.step(now_s)
        for packet in packets:
            flow = packet.flow
            own = (self._address, flow.port)
            data = self._engine.trace_packet(own, flow.target, flow.peer, packet.seq, packet.ttl)
            send_trace(self._sockets[flow.port], data, packet.ttl, flow.target)
        for trace in traces:
            self.found.setdefault(trace.flow.port, {})[trace.flow.peer] = trace
        return not self._tracer.busy

    def take_socket(self, port: int) -> socket.socket:
        """Return a port's socket and give up its ownership: `close` leaves it open."""
        return self._sockets.pop(port)

    def close(self) -> None:
        """Close the sockets that were not taken by `take_socket`."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    def _read(self, port: int, sock: socket.socket) -> None:
        own = (self._address, port)
        for flags in (socket.MSG_ERRQUEUE, 0):
            for _ in range(MAX_READS_PER_QUEUE):
                try:
                    data, ancillary, _, sender = sock.recvmsg(512, 512, flags | socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                except OSError:  # a network error, which is in the error queue too
                    continue
                if flags:
                    self._on_error(port, data, ancillary, sender[:2])
                elif (seq := self._engine.traced_seq(data, sender[:2], own)) is not None:
                    self._tracer.on_arrival(seq)

    def _on_error(
        self, port: int, data: bytes, ancillary: list[tuple[int, int, bytes]], target: tuple[str, int]
    ) -> None:
        error = error_of(ancillary)
        if error is not None:
            seq = int.from_bytes(data[4:8], "big") if len(data) >= MIN_QUOTED_BYTES else None
            apply_trace_hit(
                self._tracer, port, TraceHit(port, target, error.hop, error.type, error.code, seq)
            )


def apply_trace_hit(tracer: Tracer, sock: int, hit: TraceHit) -> None:
    """Pass a trace packet's answer or ICMP error, which socket `sock` received, to the tracer."""
    if hit.hop is None:
        if hit.seq is not None:
            tracer.on_arrival(hit.seq)
        return
    origin = ORIGIN_ICMP6 if ":" in hit.hop else ORIGIN_ICMP
    if hit.type == TIME_EXCEEDED[origin]:
        if hit.seq is not None:
            tracer.on_hop(hit.seq, hit.hop)
        else:
            tracer.on_unquoted_hop(sock, hit.target, hit.hop)
    elif hit.type == UNREACHABLE[origin] and hit.hop == hit.target[0] and hit.seq is not None:
        tracer.on_arrival(hit.seq)  # the host is reached, but no program listens
