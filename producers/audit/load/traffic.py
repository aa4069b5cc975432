"""Sends and receives one host's load in a round, as a process of its own; prints the figures as JSON.

A receiver listens on a NIC's address until all partners have connected, or `meet_s` has passed. It accepts
only their addresses. Both ends prove by a code that they have the probe key. The code is HMAC-SHA256 over the
run, both hosts, the flow, the kind and two nonces. Before the client's proof it sends 122 bytes at most.

A flow has two connections. `load` carries the client's load, then the server's, each up to its end of stream.
`echo` measures round trips, first without load, then under it. The rate is an upper limit. Every socket has a
time-out, and an alarm ends the process.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

CHUNK_BYTES: Final = 1 << 18
HELLO_BYTES: Final = 1024
HELLO_S: Final = 1.0
MAX_REFUSED: Final = 64
"""The receiver closes its port after so many connections with a wrong address or hello."""
RETRY_S: Final = 0.05
STALLED_S: Final = 2.0
"""A flow fails if its partner is silent for so long. The first byte may take longer: it meets others."""
IDLE_SHARE, LOAD_SHARE = 0.2, 0.4
"""Shares of the round: round trips without load, then load in each direction."""
PING_BYTES: Final = 64
PING_GAP_S: Final = 0.001
BLOCK_BYTES: Final = 1 << 16
"""Size of the blocks that a ring passes on."""
STEP_S: Final = 0.005
"""Least time between two steps of a ring."""
_SO_MAX_PACING_RATE: Final = 47
KINDS: Final = ("load", "echo")
RING: Final = "ring"


class Failed(Exception):
    """A flow could not run; the text is the reason, in one line."""


@dataclass(frozen=True)
class Flow:
    """A flow between two NICs. `near` and `far`: this host's address and the partner's."""

    flow: str
    """Name of the flow on both hosts: `host/device>host/device`, from client to server."""
    host: str
    """The partner's name."""
    near: str
    far: str
    is_client: bool


@dataclass(frozen=True)
class Plan:
    """A host's part of a round. `kind`: load or ring."""

    run: str
    host: str
    kind: str
    port: int
    seconds: float
    rate_bps: float
    meet_s: float
    key_file: str
    flows: tuple[Flow, ...]
    """In a ring they are two: to the next host, as client, and from the previous host, as server."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the connections of each flow."""
        return (RING,) if self.kind == RING else KINDS

    @property
    def limit_s(self) -> float:
        """Time after which the process must have ended."""
        return 2 * self.meet_s + self.seconds + 3 * STALLED_S

    def text(self) -> str:
        """Return the plan as one command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Plan:
        """Return the plan in a command-line argument. Raises ValueError, TypeError, KeyError for others."""
        values = json.loads(text)
        return cls(**{**values, "flows": tuple(Flow(**flow) for flow in values["flows"])})


def code_of(key: bytes, role: str, parts: Sequence[str]) -> str:
    """Return the code over `parts` by which `role`, client or server, proves that it has the key."""
    return hmac.new(key, "\0".join((role, *parts)).encode(), "sha256").hexdigest()


def _is_equal(answer: object, code: str) -> bool:
    return hmac.compare_digest(str(answer).encode("utf-8", "replace"), code.encode())


def percentile(values: Sequence[float], share: float) -> float:
    """Return the one of `values` that a fraction `share` of them do not exceed. `values`: not empty."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _line(sock: socket.socket) -> dict[str, Any]:
    """Read a line of JSON, byte by byte, as load follows on the same connection. Raises Failed."""
    text = b""
    while not text.endswith(b"\n"):
        part = sock.recv(1)
        if not part or len(text) >= HELLO_BYTES:
            raise Failed("the partner closed the connection" if not part else "too long a hello")
        text += part
    try:
        hello = json.loads(text)
    except RecursionError as error:
        raise Failed("too deep a hello") from error
    if not isinstance(hello, dict):
        raise Failed("no hello")
    return hello


def _put(sock: socket.socket, **values: object) -> None:
    sock.sendall(json.dumps(values).encode() + b"\n")


def _signed(plan: Plan, flow: Flow, kind: str, nonces: Sequence[str]) -> list[str]:
    ends = [plan.host, flow.host] if flow.is_client else [flow.host, plan.host]
    return [plan.run, *ends, flow.flow, kind, *nonces]


def _greet(sock: socket.socket, plan: Plan, flow: Flow, kind: str, key: bytes) -> None:
    """Send the client's hello, and exchange the codes with the server. Raises Failed."""
    nonce = secrets.token_hex(16)
    _put(sock, run=plan.run, flow=flow.flow, kind=kind, nonce=nonce)
    answer = _line(sock)
    parts = _signed(plan, flow, kind, (nonce, str(answer.get("nonce"))))
    if not _is_equal(answer.get("code"), code_of(key, "server", parts)):
        raise Failed(f"{flow.host} has another key")
    _put(sock, code=code_of(key, "client", parts))


def _admit(sock: socket.socket, plan: Plan, flows: Sequence[Flow], key: bytes) -> tuple[Flow, str]:
    """Exchange codes with a client; return the flow and kind of its connection. Raises Failed."""
    hello = _line(sock)
    flow = next((candidate for candidate in flows if candidate.flow == hello.get("flow")), None)
    kind = hello.get("kind")
    if flow is None or hello.get("run") != plan.run or kind not in plan.kinds:
        raise Failed("a hello of another run or flow")
    nonce = secrets.token_hex(16)
    parts = _signed(plan, flow, kind, (str(hello.get("nonce")), nonce))
    _put(sock, nonce=nonce, code=code_of(key, "server", parts))
    if not _is_equal(_line(sock).get("code"), code_of(key, "client", parts)):
        raise Failed(f"{flow.host} has another key")
    return flow, str(kind)


def send(sock: socket.socket, seconds: float, rate_bps: float) -> int:
    """Send for `seconds` at no more than `rate_bps`, then end the stream; return the number of bytes."""
    if rate_bps / 8 < 2**31:  # the kernel spreads packets; the limit below holds without it too
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, int(rate_bps / 8))
    size = max(1, min(CHUNK_BYTES, int(rate_bps / 8 * 0.01)))
    chunk, sent, since_s = memoryview(bytes(size)), 0, time.monotonic()
    while (now_s := time.monotonic() - since_s) < seconds:
        ahead_s = sent * 8 / rate_bps - now_s
        if ahead_s > 0:
            time.sleep(min(ahead_s, seconds - now_s))
        else:
            sent += sock.send(chunk)
    sock.shutdown(socket.SHUT_WR)
    return sent


def receive(sock: socket.socket) -> tuple[int, float]:
    """Receive up to the end of the stream; return the bytes, and the rate since the first byte, bit/s."""
    buffer = bytearray(CHUNK_BYTES)
    first = got = sock.recv_into(buffer)
    since_s = time.monotonic()
    sock.settimeout(STALLED_S)
    while count := sock.recv_into(buffer):
        got += count
    return got, (got - first) * 8 / max(time.monotonic() - since_s, 1e-9)


def _exactly(sock: socket.socket, count: int) -> bool:
    """Receive `count` bytes and return True; return False if the stream ends earlier."""
    left = memoryview(bytearray(count))
    while len(left):
        got = sock.recv_into(left)
        if not got:
            return False
        left = left[got:]
    return True


def _round_trips(sock: socket.socket, is_over: Callable[[], bool]) -> Iterator[float]:
    """Send small messages one after another until `is_over()`; yield the round trip of each message, us."""
    ping = bytes(PING_BYTES)
    while not is_over():
        since_s = time.monotonic()
        sock.sendall(ping)
        if not _exactly(sock, PING_BYTES):
            raise Failed("the partner ended the echoes")
        yield (time.monotonic() - since_s) * 1e6
        time.sleep(PING_GAP_S)


def _client(plan: Plan, rate_bps: float, load: socket.socket, echo: socket.socket) -> dict[str, float]:
    """Measure round trips without load, then the rate of each direction and round trips under load."""
    idle_end_s = time.monotonic() + IDLE_SHARE * plan.seconds
    idle = list(_round_trips(echo, lambda: time.monotonic() >= idle_end_s))
    over, loaded = threading.Event(), list[float]()

    def beside() -> None:
        with contextlib.suppress(OSError, Failed):  # the server ends the echoes with its own load
            for round_trip in _round_trips(echo, over.is_set):
                loaded.append(round_trip)

    pings = threading.Thread(target=beside, daemon=True)
    pings.start()
    try:
        sent = send(load, LOAD_SHARE * plan.seconds, rate_bps)
        partner_bps = float(_line(load)["bps"])
        received, bps = receive(load)
    finally:
        over.set()
        pings.join(STALLED_S)
    if not loaded:
        raise Failed("no round trip under load")
    return {
        "sent_bytes": sent,
        "received_bytes": received,
        "send_bps": partner_bps,
        "receive_bps": bps,
        "idle_p50_us": percentile(idle, 0.5),
        "idle_p99_us": percentile(idle, 0.99),
        "loaded_p99_us": percentile(loaded, 0.99),
    }


def _server(plan: Plan, rate_bps: float, load: socket.socket, echo: socket.socket) -> dict[str, float]:
    """Answer echoes and receive the client's load; then send the client its rate and the server's load."""

    def answer() -> None:
        with contextlib.suppress(OSError):
            while _exactly(echo, PING_BYTES):
                echo.sendall(bytes(PING_BYTES))

    threading.Thread(target=answer, daemon=True).start()
    received, bps = receive(load)
    _put(load, bps=bps)
    sent = send(load, LOAD_SHARE * plan.seconds, rate_bps)
    return {"sent_bytes": sent, "received_bytes": received}


def _ring(plan: Plan, rate_bps: float, ahead: socket.socket, behind: socket.socket) -> dict[str, float]:
    """Pass a block to the next host after each block from the previous host; return the hops' figures, ms.

    A hop lasts until the next host's answer, which it sends as soon as it has received the block.
    """
    arrived, over, hops = threading.Semaphore(0), threading.Event(), list[float]()

    def take() -> None:
        with contextlib.suppress(OSError):
            while _exactly(behind, BLOCK_BYTES):
                behind.sendall(b"a")
                arrived.release()
        over.set()
        arrived.release()

    threading.Thread(target=take, daemon=True).start()
    step_s = max(STEP_S, BLOCK_BYTES * 8 / rate_bps)
    end_s = time.monotonic() + plan.seconds
    while (since_s := time.monotonic()) < end_s:
        try:
            ahead.sendall(bytes(BLOCK_BYTES))
            if not _exactly(ahead, 1):
                break
        except (BrokenPipeError, ConnectionResetError):  # the next host ended its round a moment earlier
            break
        hops.append((time.monotonic() - since_s) * 1e3)
        if not arrived.acquire(timeout=plan.meet_s) or over.is_set():
            break
        time.sleep(max(0.0, since_s + step_s - time.monotonic()))
    del hops[:1]  # the next host may have begun its round a moment later
    if not hops:
        raise Failed("the next host took no block")
    return {
        "steps": len(hops),
        "hop_p50_ms": percentile(hops, 0.5),
        "hop_p90_ms": percentile(hops, 0.9),
        "hop_max_ms": max(hops),
    }


def _listener(near: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in near else socket.AF_INET
    return socket.create_server((near, port), family=family, backlog=2 * MAX_REFUSED)


@dataclass
class TrafficProcess:
    """The running flows of a plan: open connections by (flow, kind), and errors by flow."""

    plan: Plan
    key: bytes
    until_s: float
    """Time by time.monotonic at which the wait for partners ends."""
    open: dict[tuple[str, str], socket.socket] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def meet(self) -> None:
        """Connect to the servers and admit the clients, until about `until_s`."""
        plan = self.plan
        near = {flow.near for flow in plan.flows if not flow.is_client}
        work = [threading.Thread(target=self._listen, args=(address,), daemon=True) for address in near]
        work += [
            threading.Thread(target=self._reach, args=(flow,), daemon=True)
            for flow in plan.flows
            if flow.is_client
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join(max(0.0, self.until_s + HELLO_S * 2 - time.monotonic()))

    def missing(self, flow: Flow) -> bool:
        """Return whether a flow lacks a connection."""
        return any((flow.flow, kind) not in self.open for kind in self.plan.kinds)

    def _reach(self, flow: Flow) -> None:
        for kind in self.plan.kinds:
            reason = "no time left"
            while time.monotonic() < self.until_s:
                try:
                    sock = socket.create_connection(
                        (flow.far, self.plan.port), timeout=HELLO_S, source_address=(flow.near, 0)
                    )
                except OSError as error:
                    reason = str(error.strerror or error)
                    time.sleep(RETRY_S)
                    continue
                try:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    _greet(sock, self.plan, flow, kind, self.key)
                except (OSError, ValueError, Failed) as error:
                    sock.close()
                    reason = f"refused by {flow.host}: {error}"
                    if "another key" in reason:
                        break
                    time.sleep(RETRY_S)
                    continue
                self._keep(flow, kind, sock)
                break
            if (flow.flow, kind) not in self.open:
                self.errors[flow.flow] = f"{flow.host} at {flow.far} port {self.plan.port}: {reason}"
                return

    def _listen(self, near: str) -> None:
        flows = [flow for flow in self.plan.flows if flow.near == near and not flow.is_client]
        try:
            listener = _listener(near, self.plan.port)
        except OSError as error:
            self.errors |= {
                flow.flow: f"{near} port {self.plan.port}: {os.strerror(error.errno or 0)}" for flow in flows
            }
            return
        with listener, contextlib.suppress(TimeoutError):
            while any(map(self.missing, flows)) and self.refused < MAX_REFUSED:
                listener.settimeout(max(self.until_s - time.monotonic(), 1e-3))
                sock, far = listener.accept()
                self._take(sock, [flow for flow in flows if flow.far == far[0]])
        for flow in filter(self.missing, flows):
            self.errors[flow.flow] = f"{flow.host} at {flow.far} did not come within {self.plan.meet_s:g} s"

    def _take(self, sock: socket.socket, flows: Sequence[Flow]) -> None:
        """Admit a connection, or close it. `flows`: the flows from the address that it comes from."""
        sock.settimeout(HELLO_S)
        try:
            if not flows:
                raise Failed("a host without a flow")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            flow, kind = _admit(sock, self.plan, flows, self.key)
        except (OSError, ValueError, Failed):
            self.refused += 1
            sock.close()
            return
        self._keep(flow, kind, sock)

    def _keep(self, flow: Flow, kind: str, sock: socket.socket) -> None:
        sock.settimeout(self.plan.meet_s + IDLE_SHARE * self.plan.seconds + STALLED_S)
        with self.lock:
            if (flow.flow, kind) in self.open:
                sock.close()
            else:
                self.open[flow.flow, kind] = sock

    def load(self, flow: Flow, results: dict[str, Any]) -> None:
        """Run a flow, and put its figures or its error into `results`."""
        sharing = sum(other.near == flow.near for other in self.plan.flows)
        rate_bps = self.plan.rate_bps / sharing
        try:
            work = _client if flow.is_client else _server
            results[flow.flow] = work(self.plan, rate_bps, *(self.open[flow.flow, kind] for kind in KINDS))
        except (OSError, ValueError, KeyError, Failed) as error:
            self.errors[flow.flow] = f"{flow.host} stopped: {error}"


def _loaded(process: TrafficProcess, ready: Sequence[Flow]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    work = [threading.Thread(target=process.load, args=(flow, results), daemon=True) for flow in ready]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join(process.plan.limit_s)
    return results


def run(plan: Plan, key: bytes) -> dict[str, Any]:
    """Run the plan; return the figures or the error of each flow, and the number of refused connections."""
    process = TrafficProcess(plan, key, time.monotonic() + plan.meet_s)
    process.meet()
    ready = [flow for flow in plan.flows if not process.missing(flow)]
    results: dict[str, Any] = {}
    if plan.kind == RING and len(ready) == len(plan.flows):
        ahead, behind = sorted(ready, key=lambda flow: not flow.is_client)
        try:
            sockets = (process.open[flow.flow, RING] for flow in (ahead, behind))
            results[ahead.flow] = _ring(plan, plan.rate_bps, *sockets)
        except (OSError, Failed) as error:
            process.errors[ahead.flow] = f"{ahead.host} stopped: {error}"
    elif plan.kind != RING:
        results = _loaded(process, ready)
    for sock in process.open.values():
        sock.close()
    figures: Mapping[str, Any] = results
    return {
        "flows": figures,
        "errors": {name: text for name, text in process.errors.items() if name not in results},
        "refused": process.refused,
    }


def main() -> None:
    """Run the plan of the only argument, and print the result."""
    from producers.probe.keys import read_key

    plan = Plan.of(sys.argv[1])
    signal.alarm(int(plan.limit_s) + 1)
    key = read_key(Path(plan.key_file)) if plan.key_file else b""
    print(json.dumps(run(plan, key)))


if __name__ == "__main__":
    main()
