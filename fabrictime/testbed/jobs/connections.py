"""Keeps the TCP connections under a job's streams: opens, moves, paces and reopens them.

A move changes the source port. The sender opens a connection to the receiver's listener and sends 16 bytes:
the stream and the sequence number of the connection. The receiver drains and drops its former connection and
answers with 8 bytes: the number of received bytes. The sender drops its former connection and continues with
that byte, so that no byte is lost or repeated. Both ends reset the former connection, so that its ports are
free at once. Until the answer arrives, the former connection continues. A connection with a lower number than
an earlier one is too late and is refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from fabrictime.testbed.processes import userns
from fabrictime_client import Flow, FlowEndpoint
from native.jobs.streams import OUTSIDE, Streams

_HELLO: Final = struct.Struct("=8sII")
_MAGIC: Final = b"ftstream"
_ANSWER: Final = struct.Struct("=Q")
_SO_MAX_PACING_RATE: Final = 47
_UNPACED: Final = 2**64 - 1
_TCPI_SND_MSS_AT: Final = 16  # offset in struct tcp_info
_HEADER_BYTES: Final = 66  # Ethernet, IPv4, TCP with timestamps
_TCPI_TOTAL_RETRANS_AT: Final = 100  # offset in struct tcp_info
_MOVE_NS: Final = 1_500_000_000
_AGAIN_NS: Final = 300_000_000
_DIAL_NS: Final = 50_000_000
_PORTS: Final = (20_000, 60_000)
_TICK_NS: Final = 20_000_000
_SPARES, _MIN_SPARES = 12, 4


@dataclass(frozen=True, slots=True)
class Place:
    """The host, network namespace and address of a rank."""

    host: str
    netns: str | None
    address: str


@dataclass(slots=True)
class _Attempt:
    """A connection that is being set up to carry a stream."""

    sock: socket.socket
    port: int
    number: int
    begin_ns: int
    dialled_ns: int
    greeted: bool = False
    answer: bytes = b""


@dataclass(slots=True)
class Carried:
    """A stream on a connection, which cannot be moved if a stream `back` uses the connection as well."""

    stream: int
    source: Place
    peer: Place
    port: int
    back: int | None = None
    pace_bps: int = 0
    own_pace_bps: int = 0
    """The job's own pace, 0: none; no command raises it."""
    tx: socket.socket | None = None
    rx: socket.socket | None = None
    also: list[socket.socket] = field(default_factory=list)
    """The same sockets again, for the stream back."""
    attempt: _Attempt | None = None
    number: int = 0
    in_force: int = -1
    """Number of the attempt that `tx` came from."""
    receiver_number: int = -1
    """Number of the newest attempt that the receiver has heard of."""
    again_ns: int = 0
    retransmits: int = 0
    flow: Flow | None = None


class Connections:
    """The connections of one job. The constructor opens a listener per receiving host."""

    def __init__(
        self,
        streams: Streams,
        carried: list[Carried],
        peer_port: int,
        endpoint: FlowEndpoint,
        *,
        congestion: str,
        job: str | None = None,
        tenant: str | None = None,
        seed: int = 0,
        dscp: int = 0,
    ) -> None:
        self._streams, self.carried, self._endpoint = streams, carried, endpoint
        self._congestion, self._job, self._tenant = congestion, job, tenant
        self._dscp = dscp
        self._random = random.Random(seed)  # noqa: S311  # repeatable, and no secret
        self._poll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._owned: dict[int, socket.socket] = {}
        self._of = {one.stream: one for one in carried} | {
            one.back: one for one in carried if one.back is not None
        }
        self.moves: list[dict[str, Any]] = []
        """Every move: the stream, both ports, the times of the request and of the continuation."""
        self.lost = 0
        """Connections that broke by themselves and were opened again."""
        self._listeners: dict[str, socket.socket] = {}
        self._spares: dict[str | None, list[socket.socket]] = {one.source.netns: [] for one in carried}
        """By namespace sockets opened in it ahead: entering takes a thread, and a move has no time."""
        self.peer_port = peer_port
        for place in {one.peer.host: one.peer for one in carried}.values():
            self._listen(place)
        self._poll.register(endpoint, select.EPOLLIN)  # `tend` reads
        streams.watch(self._poll.fileno())

    # -- the loop -------------------------------------------------------------------------------------------

    def open(self, until_ns: int, stop: Callable[[], bool]) -> bool:
        """Open all connections; return False if some are not open by `until_ns`. Raises OSError."""
        for netns, spares in self._spares.items():
            spares += self._opened(netns, sum(one.source.netns == netns for one in self.carried) + _SPARES)
        for one in self.carried:
            self._begin(one, one.port)
        while not all(one.tx is not None for one in self.carried):
            if time.monotonic_ns() > until_ns or stop():
                return False
            for one in self.carried:
                if one.attempt is None and one.tx is None:
                    raise OSError(errno.EADDRINUSE, f"no connection from {one.source.address}:{one.port}")
            self._serve(0.05)
        return True

    def run(self, until_ns: int) -> int:
        """Run the streams until `until_ns` or an event. Return the result of `Streams.run`."""
        why = self._streams.run(min(until_ns, time.monotonic_ns() + _TICK_NS))
        for stream, _ in self._streams.broken():
            self._broke(self._of[stream])
        if why == OUTSIDE:
            self._serve(0)
        self.tend()
        return why

    def tend(self) -> None:
        """Process commands of the endpoint's socket, and retry or abandon connections that take too long."""
        self._endpoint.poll()
        self._fill_spares()
        now_ns = time.monotonic_ns()
        for one in self.carried:
            attempt = one.attempt
            if attempt is not None and not attempt.greeted and now_ns - attempt.dialled_ns > _DIAL_NS:
                self._dial_again(one, attempt, now_ns)
            late = attempt is not None and now_ns - attempt.begin_ns > _MOVE_NS
            if attempt is not None and late and one.tx is not None:
                is_switched = one.receiver_number >= attempt.number  # the receiver cannot go back then
                self._abandon(one, "no answer on the new path")
                if is_switched:
                    self._broke(one)
            elif (
                one.tx is None
                and one.flow is not None
                and (attempt is None or late)
                and now_ns - one.again_ns > _AGAIN_NS
            ):
                one.again_ns = now_ns
                self._abandon(one, "no answer on the new path")
                with contextlib.suppress(OSError):
                    self._begin(one, self._random.randrange(*_PORTS))

    def move(self, one: Carried, port: int) -> int | None:
        """Move a flow to `port`. Return `port` if it is in force already, else None. Raises OSError."""
        if one.tx is not None and port == one.port:
            if one.attempt is not None and one.receiver_number >= one.attempt.number:
                raise OSError(errno.EBUSY, f"on its way to port {one.attempt.port}")
            self._drop_attempt(one)
            return port
        self._drop_attempt(one)
        self._begin(one, port)
        return None

    def pace(self, one: Carried, rate_bps: int) -> int:
        """Limit a flow's rate; 0 restores the job's own pace. Return `rate_bps`."""
        one.pace_bps = min((bps for bps in (rate_bps, one.own_pace_bps) if bps), default=0)
        if one.tx is not None:
            _pace(one.tx, one.pace_bps)
        return rate_bps

    def retransmits(self) -> int:
        """Return the number of TCP segments retransmitted, on all present and former connections."""
        return sum(one.retransmits + (_retransmits(one.tx) if one.tx else 0) for one in self.carried)

    def close(self) -> None:
        """Reset all connections, so that every port is free again at once."""
        for one in self.carried:
            self._abandon(one, "the job ended")
            self._let_go(one)
        spares = [sock for opened in self._spares.values() for sock in opened]
        for sock in (*self._listeners.values(), *self._owned.values(), *spares):
            sock.close()
        self._poll.close()

    # -- the sender's side ----------------------------------------------------------------------------------

    def _begin(self, one: Carried, port: int) -> None:
        """Begin to connect a stream from the source port `port`. Raises OSError."""
        one.number += 1
        begin_ns = time.monotonic_ns()
        sock = self._dial(one, port)
        one.attempt = attempt = _Attempt(sock, sock.getsockname()[1], one.number, begin_ns, begin_ns)
        self._watch(sock, select.EPOLLOUT | select.EPOLLIN, lambda: self._answered(one, attempt))

    def _dial_again(self, one: Carried, attempt: _Attempt, now_ns: int) -> None:
        """Retry an unanswered connection; the kernel would wait for a second, and full queues lose SYNs."""
        attempt.dialled_ns = now_ns
        self._unwatch(attempt.sock)
        _reset(attempt.sock)
        try:
            attempt.sock = self._dial(one, attempt.port)
        except OSError as error:
            one.attempt = None
            _fail_move(one, f"source port {attempt.port}: {error.strerror}")
            return
        self._watch(attempt.sock, select.EPOLLOUT | select.EPOLLIN, lambda: self._answered(one, attempt))

    def _dial(self, one: Carried, port: int) -> socket.socket:
        spares = self._spares[one.source.netns]
        sock = spares.pop() if spares else self._opened(one.source.netns, 1)[0]
        try:
            sock.bind((one.source.address, port))
            code = sock.connect_ex((one.peer.address, self.peer_port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except BaseException:
            sock.close()
            raise
        return sock

    def _opened(self, netns: str | None, count: int) -> list[socket.socket]:
        return userns.in_netns(netns, lambda: [_socket(self._congestion, self._dscp) for _ in range(count)])

    def _fill_spares(self) -> None:
        """Open spare sockets for moves, in one namespace per call, where too few are left."""
        for netns, spares in self._spares.items():
            if len(spares) < _MIN_SPARES:
                spares += self._opened(netns, _SPARES)
                return

    def _answered(self, one: Carried, attempt: _Attempt) -> None:
        sock = attempt.sock
        try:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            if not attempt.greeted:
                sock.send(_HELLO.pack(_MAGIC, one.stream, attempt.number))
                attempt.greeted = True
                self._poll.modify(sock.fileno(), select.EPOLLIN)
                return
            more = sock.recv(_ANSWER.size - len(attempt.answer))
            if not more:
                raise OSError(errno.ECONNRESET, "the receiver hung up")
            attempt.answer += more
        except BlockingIOError:
            return
        except OSError as error:
            self._abandon(one, f"source port {attempt.port}: {error.strerror}")
            return
        if len(attempt.answer) == _ANSWER.size:
            self._resume(one, attempt)

    def _resume(self, one: Carried, attempt: _Attempt) -> None:
        """Continue the stream on the new connection from the number of bytes that the receiver reported."""
        (got,) = _ANSWER.unpack(attempt.answer)
        self._unwatch(attempt.sock)
        one.attempt = None
        if one.tx is not None:
            self._streams.detach_tx(one.stream)
            one.retransmits += _retransmits(one.tx)
            _reset(one.tx)
        one.tx, before, one.port = attempt.sock, one.port, attempt.port
        one.in_force = attempt.number
        if one.pace_bps:
            _pace(one.tx, one.pace_bps)
        self._streams.attach_tx(one.stream, one.tx.fileno(), got)
        if one.back is not None:
            one.also.append(one.tx.dup())
            self._streams.attach_rx(one.back, one.also[-1].fileno())
        now_ns = time.monotonic_ns()
        if one.flow is None:
            one.flow = self._endpoint.add(
                one.tx,
                job=self._job,
                tenant=self._tenant,
                move=(lambda port: self.move(one, port)) if one.back is None else None,
                pace=lambda rate_bps: self.pace(one, rate_bps),
                host=one.source.host,
            )
        else:
            one.flow.moved(one.tx)
            self.moves.append(
                {
                    "connection": one.stream,
                    "from_port": before,
                    "to_port": one.port,
                    "asked_ns": attempt.begin_ns,
                    "went_on_ns": now_ns,
                }
            )

    def _abandon(self, one: Carried, reason: str) -> None:
        """Give up a connection that is being set up; the stream stays on its present connection."""
        if self._drop_attempt(one):
            _fail_move(one, reason)

    def _drop_attempt(self, one: Carried) -> bool:
        attempt, one.attempt = one.attempt, None
        if attempt is not None:
            self._unwatch(attempt.sock)
            _reset(attempt.sock)
        return attempt is not None

    def _broke(self, one: Carried) -> None:
        """Handle a connection that ended by itself, or by a reset as the receiver has accepted a newer one.

        If the newer connection is lost too, a still newer one continues from the receiver's byte.
        """
        if one.back is not None:
            raise OSError(errno.ECONNRESET, f"the connection from port {one.port} broke")
        expected = one.attempt is not None and one.receiver_number > one.in_force
        if one.tx is not None:
            self._streams.detach_tx(one.stream)
            one.retransmits += _retransmits(one.tx)
            _reset(one.tx)
            one.tx = None
        if not expected:
            self.lost += 1
            self._drop_rx(one)

    # -- the receiver's side --------------------------------------------------------------------------------

    def _listen(self, place: Place) -> None:
        def work() -> socket.socket:
            sock = _socket(self._congestion, self._dscp)
            sock.bind((place.address, self.peer_port))
            sock.listen(1024)
            return sock

        listener = userns.in_netns(place.netns, work)
        self.peer_port = listener.getsockname()[1]
        self._listeners[place.host] = listener
        self._watch(listener, select.EPOLLIN, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # it was reset before we came to it
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._owned[sock.fileno()] = sock
            self._watch(sock, select.EPOLLIN, lambda sock=sock: self._greeted(sock))  # type: ignore[misc]

    def _greeted(self, sock: socket.socket) -> None:
        """Read the number of the stream that a new connection carries, and receive the stream on it."""
        try:
            hello = sock.recv(_HELLO.size, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            hello = b""
        if 0 < len(hello) < _HELLO.size:
            return
        self._unwatch(sock)
        del self._owned[sock.fileno()]
        magic, stream, number = _HELLO.unpack(hello) if hello else (b"", 0, 0)
        one = self._of.get(stream)
        if magic != _MAGIC or one is None or one.stream != stream or number <= one.receiver_number:
            _reset(sock)
            return
        sock.recv(_HELLO.size)
        one.receiver_number = number
        self._drop_rx(one)
        one.rx = sock
        try:
            sock.send(_ANSWER.pack(self._streams.got(stream)))
        except OSError:  # reset meanwhile: its sender comes again
            return
        self._streams.attach_rx(stream, sock.fileno())
        if one.back is not None:
            one.also.append(sock.dup())
            self._streams.attach_tx(one.back, one.also[-1].fileno(), 0)

    def _drop_rx(self, one: Carried) -> None:
        if one.rx is not None:
            self._streams.detach_rx(one.stream)
            _reset(one.rx)
            one.rx = None

    # -- small things ---------------------------------------------------------------------------------------

    def _let_go(self, one: Carried) -> None:
        if one.tx is not None:
            self._streams.detach_tx(one.stream)
            one.retransmits += _retransmits(one.tx)
            _reset(one.tx)
            one.tx = None
        self._drop_rx(one)
        for sock in one.also:
            sock.close()

    def _watch(self, sock: socket.socket, events: int, work: Callable[[], None]) -> None:
        self._poll.register(sock.fileno(), events)
        self._watched[sock.fileno()] = work  # in place of a closed one that had the number

    def _unwatch(self, sock: socket.socket) -> None:
        self._watched.pop(sock.fileno(), None)
        self._poll.unregister(sock.fileno())

    def _serve(self, timeout_s: float) -> None:
        for number, _ in self._poll.poll(timeout_s):
            work = self._watched.get(number)
            if work is not None:
                work()


def _fail_move(one: Carried, reason: str) -> None:
    if one.flow is not None:
        one.flow.failed("MOVE", reason)


def congestion_of(sock: socket.socket, name: str) -> None:
    """Set TCP's congestion control. Raises OSError with its name if the kernel lacks or forbids it."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except PermissionError as error:
        reason = "net.ipv4.tcp_allowed_congestion_control lacks it, so only root may use it"
        raise OSError(error.errno, f"congestion control {name!r}: {reason}") from None
    except OSError as error:
        raise OSError(error.errno, f"congestion control {name!r} is not in this kernel") from None


def _socket(congestion: str, dscp: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        # Several connections may share a source port, where they go to different hosts.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        congestion_of(sock, congestion)
    except BaseException:
        sock.close()
        raise
    return sock


def _pace(sock: socket.socket, rate_bps: int) -> None:
    """Limit a connection to a frame rate in bit/s; the kernel paces the payload."""
    rate = _UNPACED
    if rate_bps:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        (payload,) = struct.unpack_from("=I", info, _TCPI_SND_MSS_AT)
        rate = max(1, rate_bps * payload // (payload + _HEADER_BYTES) // 8)
    sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", rate))


def _retransmits(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("=I", info, _TCPI_TOTAL_RETRANS_AT)[0])


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
