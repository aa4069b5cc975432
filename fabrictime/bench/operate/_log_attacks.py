"""Attacks through the log: records without a valid signature, replays, and bytes that are not records."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fabrictime.bench.operate._page_attacks import Attempt
from schemas import codec
from schemas.ipc import connect
from schemas.kafka.publisher import Publisher
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.records import ActMode, FlowAction, ReasonKind
from schemas.signing import SIGNED, Signer, new_key
from schemas.topics import CONFIG, DECISIONS, FALLBACKS, REJECTS, Topic

WAIT_S: Final = 60.0
S: Final = 1_000_000_000
PORT: Final = 50_000


class Endpoint:
    """A flow endpoint with one flow; it carries out every command."""

    def __init__(self, path: Path, host: str) -> None:
        self._connection = connect(path, WAIT_S)
        self._connection.sendall(f"FLOW sock:7 {PORT} MOVE,PACE {host}\n".encode())
        self._connection.settimeout(0.05)
        self._data = b""
        self.ports: list[int] = []
        """Ports to which the flow was moved."""

    def serve(self) -> None:
        """Answer the pending commands, after waiting shortly for more."""
        try:
            self._data += self._connection.recv(65_536)
        except TimeoutError:
            return
        while b"\n" in self._data:
            line, _, self._data = self._data.partition(b"\n")
            parts = line.decode().split()
            if parts[0] == "MOVE":
                self.ports.append(int(parts[3]))
                self._connection.sendall(f"DONE {parts[1]} {parts[3]} SOCKET\n".encode())

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


class Attacker:
    """Publishes as a client with write access to the log."""

    def __init__(self, log: str, folder: Path, host: str) -> None:
        self.log, self.host = log, host
        self.signer = Signer(folder / "signing.key")
        self.other = Signer(new_key(folder / "other.key").with_suffix(""))
        self._publisher = Publisher(log)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        self._flow_id = f"{host}/{boot}/sock:7"
        self._seqs = itertools.count()

    def put(self, topic: Topic[Any], key: str, record: Any) -> None:
        """Publish a record and wait for the log's acknowledgement."""
        self._publisher.publish(topic, key, record)
        self._publisher.flush(WAIT_S)

    def send(self, topic: Topic[Any], key: str, value: bytes) -> None:
        """Publish bytes as the value of a message."""
        self._publisher.send(topic.name, key, value)
        self._publisher.flush(WAIT_S)

    def decision(self, to_path: int) -> Any:
        """Return a new decision that moves the flow to the path `to_path`."""
        now_ns, seq = time.time_ns(), next(self._seqs)
        return {
            "decision_id": f"s0/1/{seq}", "shard": "s0", "epoch": 1, "seq": seq, "at_ns": now_ns,
            "host": self.host, "action": FlowAction.REROUTE, "flow_id": self._flow_id, "from_path": None,
            "to_path": to_path, "rate_bps": None, "expires_at_ns": now_ns + 600 * S,
            "reason": {"kind": ReasonKind.DOWN, "subject": "x", "seq": 1, "window_id": None},
            "config_version": 1, "signature": b"", "text": "",
        }  # fmt: skip

    @staticmethod
    def config(version: int, mode: ActMode = ActMode.ACT) -> Any:
        """Return an actuator configuration for all hosts."""
        return {
            "host": "*", "version": version, "at_ns": time.time_ns(), "by": "bench", "mode": mode,
            "thresholds": [], "latency_rules": [], "allowed_actions": [FlowAction.REROUTE],
            "max_actions_per_s": 100_000, "max_moved_share": 1.0, "protected_jobs": [], "slices": [],
            "revert_before_ns": None, "paused_mode": "", "signature": None,
        }  # fmt: skip

    def fallbacks(self) -> Any:
        """Return fallback records that would make all decisions stale."""
        return {
            "host": self.host, "shard": "s0", "epoch": 2**40, "seq": 0, "at_ns": 0, "config_version": 1,
            "flows": [], "signature": None,
        }  # fmt: skip

    def forgeries(self, topic: Topic[Any], key: str, record: Any) -> Iterator[tuple[str, Any]]:
        """Yield records that no verifier may accept."""
        signed = self.signer.signed(topic, key, record)
        foreign = self.other.signed(topic, key, record)
        yield "unsigned", record
        yield "another key", foreign
        yield "another key's id", {**signed, "signature": foreign["signature"][:8] + signed["signature"][8:]}
        yield "short signature", {**signed, "signature": signed["signature"][:40]}
        yield "zeros", {**signed, "signature": bytes(72)}
        yield "signed for another host", self.signer.signed(topic, "h2", record)
        yield "altered", {**signed, **_ALTERED[topic.name]}


_ALTERED: Final[dict[str, dict[str, Any]]] = {
    DECISIONS.name: {"to_path": 51_999},
    CONFIG.name: {"by": "another"},
    FALLBACKS.name: {"epoch": 2**40 + 1},
}


def attack(log: str, folder: Path, host: str) -> Iterator[Attempt]:
    """Yield each attempt. Raises RuntimeError if the actuator does not obey signed decisions."""
    attacker, endpoint = Attacker(log, folder, host), Endpoint(folder / "data" / "run" / "control.sock", host)
    try:
        old = attacker.signer.signed(CONFIG, "*", attacker.config(1))
        attacker.put(CONFIG, "*", attacker.signer.signed(CONFIG, "*", attacker.config(1)))
        genuine = attacker.signer.signed(DECISIONS, host, attacker.decision(50_001))
        attacker.put(DECISIONS, host, genuine)
        _obeyed(endpoint, 50_001)
        names = list(_garbage(attacker))
        for number in range(10):
            decision = attacker.decision(51_000 + number)
            for topic, key, record in (
                (DECISIONS, host, decision),
                (CONFIG, "*", attacker.config(2, ActMode.OBSERVE)),
                (FALLBACKS, host, attacker.fallbacks()),
            ):
                for name, forged in attacker.forgeries(topic, key, record):
                    attacker.put(topic, key, forged)
                    names.append((topic.name, f"{name} {number}"))
            for name, topic, key, record in (
                ("replayed decision", DECISIONS, host, genuine),
                ("replayed config", CONFIG, "*", old),
                ("tombstone", CONFIG, "*", None),
            ):
                attacker.put(topic, key, record)
                names.append((topic.name, f"{name} {number}"))
        attacker.put(DECISIONS, host, attacker.signer.signed(DECISIONS, host, attacker.decision(50_002)))
        _obeyed(endpoint, 50_002)
        refused = _refused(log, len(names))
        moved = [port for port in endpoint.ports if port not in (50_001, 50_002)]
        accepted = max(len(names) - refused, len(moved))
        yield from (
            ("signed records", f"{topic}: {name}", number < accepted)
            for number, (topic, name) in enumerate(names)
        )
    finally:
        endpoint.close()


def _obeyed(endpoint: Endpoint, port: int) -> None:
    """Wait until the flow was moved to a port by a signed decision. Raises RuntimeError."""
    end_s = time.monotonic() + WAIT_S
    while port not in endpoint.ports:
        endpoint.serve()
        if time.monotonic() > end_s:
            raise RuntimeError(f"actuator: a signed decision had no effect, moves {endpoint.ports}")


def _refused(log: str, expected: int) -> int:
    """Return the number of rejects of signed topics, after `expected` rejects or a time limit."""
    end_s, count = time.monotonic() + WAIT_S, 0
    with TopicReader.open(log, {REJECTS: BEGINNING}) as reader:
        while count < expected and time.monotonic() < end_s:
            for message in reader.poll(0.2):
                if message.value is not None:
                    record = codec.decode(message.value, REJECTS.type)
                    count += record["topic"] in SIGNED
    return count


def _garbage(attacker: Attacker) -> Iterator[tuple[str, str]]:
    """Publish arbitrary bytes and other topics' records; yield topic and name of each message."""
    values = {
        "text": b"hello",
        "empty": b"",
        "unknown schema": b"\xc3\x01" + bytes(20),
        "another record": codec.encode(FALLBACKS.type, attacker.fallbacks())[:12] + bytes(9),
        "cut off": codec.encode(CONFIG.type, attacker.config(1))[:-3],
    }
    for topic, key in ((DECISIONS, attacker.host), (CONFIG, "*"), (FALLBACKS, attacker.host)):
        for name, value in values.items():
            attacker.send(topic, key, value)
            yield topic.name, name
