"""Serves the embedded log: sockets, housekeeping, start and stop.

A connection passes one request at a time to the broker, in order. Its buffer is bounded. Bytes that are not a
valid request close the connection with one log line.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import psutil

from fabrictime.log.broker import Broker
from fabrictime.log.compact import clean
from fabrictime.log.errors import AlreadyRunning, MalformedRequest
from fabrictime.log.groups import Coordinator
from fabrictime.log.offsets import OffsetStore
from fabrictime.log.partition import Partition, Range
from fabrictime.log.requests.base import Peer, Response
from fabrictime.log.settings import LogSettings
from fabrictime.log.store import Store
from fabrictime.log.wire import INT32, Api, read_head
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from schemas.service_notifier import ServiceNotifier

log = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 64 * 1024
_KEEP_BUFFER_BYTES: Final = 2 * 1024 * 1024
"""Largest receive buffer that a connection keeps; one that grew beyond this is freed after use."""
_MAX_SMALL_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Longest request other than Produce."""
_STALLED_S: Final = 60.0
_HEAD_BYTES: Final = 14
_ACCEPT_PAUSE_S: Final = 1.0
_OPEN_FILES: Final = 65_536
_SPACE_S: Final = 1.0
"""Interval between two reports whether there is disk space, s."""


class Connection:
    """The TCP connection of one client."""

    def __init__(self, server: LogServer, sock: socket.socket, peer: Peer) -> None:
        self.peer = peer
        self._server, self._broker, self._sock = server, server.broker, sock
        self._loop = server.loop
        self._fd = sock.fileno()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._fill = 0
        self._out: deque[bytes | memoryview | Range] = deque()
        self._pending: asyncio.Future[Response] | None = None
        self._reading = self._writing = False
        self._progress_s = self._loop.time()
        self._closed = False
        server.buffered_bytes += len(self._buffer)
        self._read(True)

    # -- in

    def _read(self, on: bool) -> None:
        if on != self._reading:
            self._reading = on
            if on:
                self._loop.add_reader(self._fd, self._readable)
            else:
                self._loop.remove_reader(self._fd)

    def _needed(self) -> int:
        """Number of bytes of the incoming request: 4 until its length field has arrived."""
        if self._fill - self._start < 4:
            return 4
        size: int = INT32.unpack_from(self._view, self._start)[0]
        return 4 + size

    def _readable(self) -> None:
        limit = len(self._buffer)
        needed = self._needed()
        if needed > _BUFFER_BYTES:
            # Read a large request to its end and no further, so that nothing has to be moved afterwards.
            limit = min(limit, self._start + needed)
        try:
            size = self._sock.recv_into(self._view[self._fill : limit])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"{error.strerror}", level=logging.DEBUG)
            return
        if not size:
            self.close("end of stream", level=logging.DEBUG)
            return
        self._fill += size
        self._progress_s = self._loop.time()
        self._process()

    def _process(self) -> None:
        """Handle the complete requests in the buffer, each after the previous one was answered and sent."""
        try:
            while not self._closed and self._pending is None and not self._out:
                have = self._fill - self._start
                needed = self._needed()
                if have >= 4:
                    self._check_length(needed - 4, have)
                if have < needed or have < 4:
                    break
                frame = self._view[self._start + 4 : self._start + needed]
                self._start += needed
                head = read_head(frame)
                result = self._broker.handle(head, frame, self.peer)
                if isinstance(result, (asyncio.Future, Coroutine)):
                    self._wait(head.correlation_id, result)
                elif result is not None:
                    self._send(head.correlation_id, result)
            if not self._closed:
                self._make_space()
        except MalformedRequest as error:
            self.close(str(error))
        except Exception:
            log.exception("connection from %s:%d: request failed", *self.peer)
            self.close("a request failed")

    def _check_length(self, size: int, have: int) -> None:
        if not 8 <= size <= self._server.settings.max_request_bytes:
            raise MalformedRequest(
                f"request of {size} B, expected 8 to {self._server.settings.max_request_bytes}"
            )
        if size > _MAX_SMALL_REQUEST_BYTES and have >= 6:
            api_key = int.from_bytes(self._view[self._start + 4 : self._start + 6], "big")
            if api_key != Api.PRODUCE:
                raise MalformedRequest(
                    f"request {api_key} of {size} B, expected at most {_MAX_SMALL_REQUEST_BYTES}"
                )

    def _make_space(self) -> None:
        have = self._fill - self._start
        if not have:
            self._start = self._fill = 0
            if len(self._buffer) > _KEEP_BUFFER_BYTES:
                self._resize(_BUFFER_BYTES)
        needed = self._needed()
        if self._pending is not None or self._out:
            # One request ahead is enough; more waits in the socket.
            self._read(self._fill < len(self._buffer) and have < max(needed, _HEAD_BYTES))
            return
        if self._start and (self._start + needed > len(self._buffer) or self._fill == len(self._buffer)):
            self._view[:have] = self._view[self._start : self._fill]
            self._start, self._fill = 0, have
        if self._fill == len(self._buffer) and needed > self._fill:
            # Grow with the received bytes, not with the announced size.
            self._resize(min(needed, 2 * len(self._buffer)))
        self._read(True)

    def _resize(self, size: int) -> None:
        server = self._server
        grown = server.buffered_bytes + size - len(self._buffer)
        if size > len(self._buffer) and grown > server.settings.buffer_bytes:
            raise MalformedRequest(
                f"receive buffers of all connections hold {server.buffered_bytes} B already"
            )
        server.buffered_bytes = grown
        buffer = bytearray(size)
        buffer[: self._fill] = self._view[: self._fill]
        self._view.release()
        self._buffer, self._view = buffer, memoryview(buffer)

    # -- out

    def _wait(
        self, correlation_id: int, result: asyncio.Future[Response] | Coroutine[Any, Any, Response]
    ) -> None:
        future = asyncio.ensure_future(result)
        self._pending = future

        def done(finished: asyncio.Future[Response]) -> None:
            self._pending = None
            if self._closed or finished.cancelled():
                return
            error = finished.exception()
            if error is not None:
                log.error("connection from %s:%d: request failed", *self.peer, exc_info=error)
                self.close("a request failed")
                return
            response = finished.result()
            if response is not None:
                self._send(correlation_id, response)
            self._process()

        future.add_done_callback(done)

    def _send(self, correlation_id: int, response: Response) -> None:
        assert response is not None  # noqa: S101 - callers look
        size = 4 + sum(chunk.size if isinstance(chunk, Range) else len(chunk) for chunk in response)
        head = INT32.pack(size) + INT32.pack(correlation_id)
        first = response[0]
        if isinstance(first, Range):
            self._out.append(head)
            self._out.extend(response)
        else:
            self._out.append(head + first)
            self._out.extend(response[1:])
        self._flush()

    def _flush(self) -> None:
        out = self._out
        try:
            while out:
                chunk = out[0]
                if isinstance(chunk, Range):
                    sent = os.sendfile(self._fd, chunk.handle.fd, chunk.position, chunk.size)
                    if not sent:
                        self.close("a segment ends early", level=logging.ERROR)
                        return
                    left = chunk.size - sent
                    rest: Range | memoryview = Range(chunk.handle, chunk.position + sent, left)
                else:
                    sent = self._sock.send(chunk, socket.MSG_MORE if len(out) > 1 else 0)
                    left = len(chunk) - sent
                    rest = memoryview(chunk)[sent:]
                if left:
                    out[0] = rest
                else:
                    out.popleft()
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._writable)
            return
        except OSError as error:
            self.close(f"{error.strerror}", level=logging.DEBUG)
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _writable(self) -> None:
        self._flush()
        if not self._out and not self._closed:
            self._process()

    # -- end

    def stalled(self, now_s: float) -> bool:
        """Return whether an incomplete request has been in the buffer for too long."""
        waiting = self._fill > self._start and self._pending is None and not self._out
        return waiting and now_s - self._progress_s > _STALLED_S

    def close(self, why: str, level: int = logging.WARNING) -> None:
        """Close the connection and cancel its waiting responses."""
        if self._closed:
            return
        self._closed = True
        log.log(level, "connection from %s:%d closed: %s", *self.peer, why)
        self._read(False)
        if self._writing:
            self._loop.remove_writer(self._fd)
        if self._pending is not None:
            self._pending.cancel()
        self._out.clear()
        self._server.buffered_bytes -= len(self._buffer)
        self._server.connections.discard(self)
        self._sock.close()


class LogServer:
    """The broker with its listening socket, on one event loop. `start` opens and `stop` closes everything."""

    def __init__(self, settings: LogSettings, now_ms: Callable[[], int] | None = None) -> None:
        """Create the server without opening it. `now_ms` returns append time; by default an `AppendClock`."""
        self.settings, self._now_ms = settings, now_ms
        self.connections: set[Connection] = set()
        self.buffered_bytes = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._accepting: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Recover the data and listen. Raises AlreadyRunning, OSError or ValueError."""
        self.loop = asyncio.get_running_loop()
        self._listener = self._bind()
        try:
            self.store = Store(self.settings, self._now_ms)
        except BaseException:
            self._listener.close()
            raise
        self.offsets = OffsetStore(self.settings.directory)
        self.groups = Coordinator(self.settings)
        host, port = self._listener.getsockname()[:2]
        self.broker = Broker(self.settings, Peer(host, port), self.store, self.offsets, self.groups)
        self._listen()
        SOURCES.add(self.samples)
        self._tasks = [self.loop.create_task(self._upkeep())]
        if self.settings.fsync_interval_ms:
            self._tasks.append(self.loop.create_task(self._sync()))
        log.info(
            "listening on %s:%d, %d topics with %d B in %s",
            host,
            port,
            len(self.store.topics),
            sum(p.size for p in self.store.partitions()),
            self.settings.directory,
        )

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of messages, connections and disk space."""
        partitions = self.store.partitions()
        yield Sample("fabrictime_broker_messages_total", sum(each.end_offset for each in partitions))
        yield Sample("fabrictime_broker_connections", len(self.connections))
        yield Sample("fabrictime_broker_size_bytes", sum(each.size for each in partitions))
        state = os.statvfs(self.settings.directory)
        yield Sample("fabrictime_broker_free_bytes", state.f_bavail * state.f_frsize)

    @property
    def port(self) -> int:
        """The TCP port on which the server listens."""
        return self.broker.address.port

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((self.settings.host, self.settings.port))
            # Claims the port at once; connections are taken after recovery.
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise AlreadyRunning(
                f"port {self.settings.host}:{self.settings.port} is held by {port_holder(self.settings.port)}"
            ) from None
        return listener

    def _listen(self) -> None:
        self.loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.warning("no connection is taken for %.0f s: %s", _ACCEPT_PAUSE_S, error.strerror)
                self.loop.remove_reader(self._listener.fileno())
                self._accepting = self.loop.call_later(_ACCEPT_PAUSE_S, self._listen)
                return
            peer = Peer(address[0], address[1])
            if len(self.connections) >= self.settings.max_connections:
                log.warning("connection from %s:%d refused: %d are open", *peer, len(self.connections))
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.add(Connection(self, sock, peer))

    async def _upkeep(self) -> None:
        while True:
            await asyncio.sleep(self.settings.housekeeping_ms / 1000)
            try:
                self.store.check_space()
                self.store.expire()
                for partition in self.store.partitions():
                    await self._compact(partition)
            except OSError as error:
                log.error("upkeep failed, tried again in %d ms: %s", self.settings.housekeeping_ms, error)
            now_s = self.loop.time()
            for connection in [other for other in self.connections if other.stalled(now_s)]:
                connection.close(f"half a request for {_STALLED_S:.0f} s")

    async def _compact(self, partition: Partition) -> None:
        now_ms = self.store.now_ms()
        segments = partition.cleanable(now_ms, self.settings.compaction_bytes)
        if not segments:
            return
        before = sum(segment.size for segment in segments)
        partition.compacting = True
        try:
            cleaned = await asyncio.to_thread(
                clean,
                segments,
                self.settings.compaction_keys,
                partition.config.segment_bytes,
                now_ms - partition.config.delete_retention_ms,
            )
            for group in cleaned:
                partition.replace(group)
            after = sum(group.segment.size for group in cleaned)
            log.info("%s: compacted %d B to %d B", partition.directory, before, after)
        finally:
            partition.compacting = False

    async def _sync(self) -> None:
        while True:
            await asyncio.sleep(self.settings.fsync_interval_ms / 1000)
            try:
                for segment in self.store.unsynced():
                    await asyncio.to_thread(segment.sync)
                await asyncio.to_thread(self.offsets.sync)
            except OSError as error:
                log.error("fsync failed: %s", error)

    async def stop(self) -> None:
        """Close every connection and the store, and release the directory."""
        SOURCES.remove(self.samples)
        if self._accepting is not None:
            self._accepting.cancel()
        self.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()  # a cancelled task still holds the segment that it was flushing
        for connection in list(self.connections):
            connection.close("the log ends", level=logging.DEBUG)
        self.groups.close()
        await asyncio.sleep(0)
        if self.settings.fsync_interval_ms:
            for segment in self.store.unsynced():
                segment.sync()
        self.offsets.close()
        self.store.close()


def port_holder(port: int) -> str:
    """Return 'process PID (name)' of the listener on a TCP port, as far as this user may see it."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == port
                and connection.pid
            ):
                with contextlib.suppress(psutil.Error):
                    return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
                return f"process {connection.pid}"
    return "another user's process"


async def _serve(settings: LogSettings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = LogServer(settings)
    try:
        await server.start()
    except (AlreadyRunning, OSError, ValueError) as error:
        log.error("%s", error)
        return 1
    notifier = ServiceNotifier()
    notifier.notify("READY=1")
    notifier.notify(f"STATUS=listening on {settings.host}:{server.port}")
    await _report_space(server.store, notifier.notify, stop)
    notifier.notify("STOPPING=1")
    await server.stop()
    log.info("ended")
    return 0


async def _report_space(store: Store, notify: Callable[[str], None], stop: asyncio.Event) -> None:
    """Report to the service manager, until `stop` is set, whether the log refuses messages on a full disk."""
    is_full = False
    while not stop.is_set():
        if bool(store.no_space) != is_full:
            is_full = not is_full
            notify(f"X_FAULT=messages are refused, no room: {store.no_space}" if is_full else "X_FAULT=")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _SPACE_S)


def main(settings: LogSettings) -> int:
    """Run the log until SIGTERM or SIGINT. Return the exit code: 1 if it could not start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    file_limit = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < file_limit:
        # Every segment and every connection is an open file.
        resource.setrlimit(resource.RLIMIT_NOFILE, (file_limit, hard))
    return asyncio.run(_serve(settings))
