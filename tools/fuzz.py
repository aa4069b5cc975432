"""Feed parsers of network data with changed inputs, and report inputs that fail in an undocumented manner.

`python tools/fuzz.py N [TARGET...]` gives N inputs to each target, in a separate process. An input is a valid
one with some random changes. A defect is an exception that the parser does not document, the death of the
process, or an input that takes more than a second of the processor. The C fuzzers with sanitizers are in
tests/native.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SLOW_S: Final = 1.0
MAX_DEFECTS: Final = 5
EDGES: Final = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
KEY: Final = bytes(range(16))
SENDER, OWN = ("127.0.0.1", 1000), ("127.0.0.1", 2000)


@dataclass
class Target:
    """A parser, the exceptions that it documents, and valid inputs."""

    parse: Callable[[bytes], object]
    errors: tuple[type[BaseException], ...]
    seeds: list[bytes] = field(default_factory=lambda: [b""])


def changed(draw: random.Random, seeds: list[bytes]) -> bytes:
    """Return one of the seeds with some changes."""
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(data):
                data[at] = draw.randrange(256)
            case 2:
                size = draw.choice((1, 2, 4, 8))
                value = draw.choice(EDGES) % (1 << 8 * size)
                data[at : at + draw.choice((0, size))] = value.to_bytes(size, draw.choice(("big", "little")))
            case 3:
                del data[at : at + draw.randrange(1, 9)]
            case 4:
                data[at:at] = data[at : at + draw.randrange(64)]
            case _:
                other = draw.choice(seeds)
                data[at:] = other[draw.randrange(len(other) + 1) :]
    return bytes(data)


def run(target: Target, inputs: int, seed: int) -> list[str]:
    """Return a line for each defect of a target."""
    draw, defects = random.Random(seed), []  # noqa: S311  # no secrets
    for number in range(inputs):
        data = changed(draw, target.seeds)
        began_s = time.process_time()
        try:
            target.parse(data)
        except target.errors:
            pass
        except Exception as error:  # noqa: BLE001  # that is what is searched for
            defects.append(f"input {number}: {type(error).__name__}: {error!s:.120}; {data.hex()[:400]}")
        if time.process_time() - began_s > SLOW_S:
            defects.append(f"input {number}: {time.process_time() - began_s:.1f} s; {data.hex()[:400]}")
        if len(defects) >= MAX_DEFECTS:
            break
    return defects


def apart(target: Target, inputs: int, seed: int) -> list[str]:
    """Run a target in a child process; return its defects, including the child's death."""
    forks = multiprocessing.get_context("fork")
    receiver, sender = forks.Pipe(duplex=False)
    child = forks.Process(target=lambda: sender.send(run(target, inputs, seed)))
    child.start()
    sender.close()
    try:
        lines: list[str] = receiver.recv()
    except EOFError:
        lines = ["the process died"]
    child.join()
    return [f"exit code {child.exitcode}"] if child.exitcode else lines


def _records() -> Iterator[tuple[str, Target]]:
    from schemas import codec
    from tests.records import make

    for name in codec.record_names():
        seeds = [codec.encode(name, make(name))]
        yield (
            f"record {name}",
            Target(lambda data, name=name: codec.decode(data, name), (codec.BadRecord,), seeds),
        )


def _probes() -> Iterator[tuple[str, Target]]:
    from native.core import decode_probe_batch
    from native.core.probe import Engine, open_sockets
    from producers.probe.rdma import packets
    from schemas import codec
    from tests.records import make

    batch = codec.encode("ProbeBatch", make("ProbeBatch"))[codec.HEADER_BYTES :]
    yield "probe batch", Target(decode_probe_batch, (ValueError,), [batch])
    engine = Engine(open_sockets("127.0.0.1", 0, 0, 1), nic="a/lo", key=KEY)
    packet = engine.trace_packet(SENDER, OWN, "a/lo", 1, 3)
    size = engine.size_packet(SENDER, OWN, "a/lo", 1, 400)
    yield "probe packet", Target(lambda data: engine.inject(0, data, *SENDER), (), [packet, size, bytes(40)])
    yield "traced packet", Target(lambda data: engine.traced_seq(data, SENDER, OWN), (), [packet])
    source = packets.Address(bytes(16), 0, 7)
    rdma = packets.pack(packets.Packet(1, 2, 3, 4, 5, 6, None, 2), KEY, source, source)
    yield (
        "RDMA packet",
        Target(lambda data: packets.parse(data, KEY, source, source), (packets.BadPacket,), [rdma]),
    )


def _log() -> Iterator[tuple[str, Target]]:
    from fabrictime.log import batch, wire
    from fabrictime.log.errors import LogError
    from tests.record_batch import build_batch

    for api, versions in wire.LAYOUTS.items():
        for version in versions:
            yield (
                f"log {api.name} {version}",
                Target(
                    lambda data, a=api, v=version: wire.decode(a, v, data),
                    (wire.MalformedRequest,),
                    [bytes(64)],
                ),
            )
    yield (
        "log head",
        Target(lambda data: wire.read_head(memoryview(data)), (wire.MalformedRequest,), [bytes(12)]),
    )
    sample = build_batch([(b"key", b"value")])
    yield "log batch", Target(lambda data: batch.check(memoryview(data), 1 << 20), (LogError,), [sample])


def _lines() -> Iterator[tuple[str, Target]]:
    from actuators.effectors import endpoint_protocol
    from fabrictime.history import bodies, sql
    from producers.flows.registrations import parse_registration
    from schemas.control_socket import ControlServer

    flow = b'{"flow": {"transport": "tcp", "cookie": 7}, "can": ["MOVE"], "job": "a", "path": 50000}'
    yield "flow registration", Target(parse_registration, (ValueError,), [flow])
    commands = [
        b"FLOW sock:7 50000 MOVE,PACE h1",
        b"DONE 1 50000 SOCKET",
        b"FAILED 1 text",
        b"GONE sock:7",
        b"TIME 5",
    ]
    yield "flow endpoint", Target(endpoint_protocol.parse, (ValueError,), commands)
    select = b"SELECT a, count() FROM fabrictime.delays_1s WHERE a = 'x' GROUP BY a -- end"
    insert = b"INSERT INTO fabrictime.delays_1s (a, b) FORMAT JSONEachRow {}"

    def query(data: bytes) -> None:
        sql.check_reader(sql.parse(data))

    yield "history query", Target(query, (sql.Refused,), [select, insert])
    for encoding in ("lz4", "gzip", "deflate", "zstd"):
        yield (
            f"history {encoding}",
            Target(
                lambda data, e=encoding: bodies.unpack(data, e, 1 << 20),
                (bodies.BadBody, bodies.TooLarge),
                [_packed(encoding)],
            ),
        )
    server = ControlServer(Path(tempfile.mkdtemp()) / "s", "fuzz", {"act": lambda request: [request["x"]]})
    yield (
        "control socket",
        Target(lambda data: list(server._answers(data)), (), [b'{"command": "act", "x": [1, 2.5]}']),
    )


def _packed(encoding: str) -> bytes:
    import gzip
    import zlib

    import lz4.frame

    text = b"row\n" * 50
    if encoding == "zstd":
        import pyarrow

        return bytes(pyarrow.Codec("zstd").compress(text, asbytes=True))
    return {"lz4": lz4.frame.compress, "gzip": gzip.compress, "deflate": zlib.compress}[encoding](text)


def _page() -> Iterator[tuple[str, Target]]:
    from fabrictime.web.login import LoginGuard
    from fabrictime.web.settings import LoginSettings
    from fabrictime.web.users import Users
    from schemas.codec import BadRecord
    from schemas.kafka.message import Message
    from schemas.signing import SIGNED, Signer, Verifier, new_key
    from schemas.topics import DECISIONS
    from tests.records import make

    folder = Path(tempfile.mkdtemp())
    (folder / "users").touch(mode=0o600)
    (folder / "users").write_text("alice act 0123456789abcdef0123\n")
    users = Users(LoginSettings(users_file=folder / "users"))
    cookie = users.cookie(b"0123456789abcdef0123", time.time()) or ""
    admitted: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        admitted.append(scope)

    async def send(message: Any) -> None:
        pass

    guard = LoginGuard(app, users, "x-user", secure=True)

    def request(data: bytes) -> None:
        name, _, value = data.partition(b":")

        async def receive() -> Any:
            return {"body": data}

        scope = {"type": "http", "path": "/login" if data[-1:] == b"l" else "/", "method": "POST"}
        headers = [(name.lower(), value.strip())]
        call = guard({**scope, "headers": headers, "query_string": data, "client": SENDER}, receive, send)
        try:
            call.send(None)
        except StopIteration:
            return
        raise RuntimeError("the guard waits")

    headers = [
        b"cookie: fabrictime=" + cookie.encode(),
        b"authorization: Bearer x",
        b"token=x&next=/abcl",
        b"x-user: a",
    ]
    yield "login", Target(request, (), headers)
    public = new_key(folder / "key")
    signer, verifier = Signer(folder / "key"), Verifier(public)
    from schemas import codec

    decision = codec.encode("Decision", signer.signed(DECISIONS, "h1", make("Decision", host="h1")))

    def check(data: bytes) -> None:
        for topic in SIGNED:
            try:
                verifier.check(Message(1, topic, 0, 0, "h1", data))
            except BadRecord:
                continue
            if data != decision:
                raise RuntimeError("a changed record is accepted")

    yield "signature", Target(check, (), [decision])


def targets() -> Iterator[tuple[str, Target]]:
    """Yield each target with its name."""
    for group in (_records, _probes, _log, _lines, _page):
        yield from group()


def main(arguments: list[str]) -> int:
    """Run all targets, or the named ones; return 1 if any defect was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", type=int, help="inputs for each target")
    parser.add_argument("names", nargs="*", metavar="TARGET", help="beginnings of the targets' names")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_intermixed_args(arguments)
    logging.disable()
    prefixes = tuple(options.names) or ("",)
    total = bad = 0
    for name, target in [row for row in targets() if row[0].startswith(prefixes)]:
        began_s = time.monotonic()
        lines = apart(target, options.inputs, options.seed)
        total, bad = total + options.inputs, bad + len(lines)
        rate = options.inputs / (time.monotonic() - began_s)
        print(
            f"{name}: {options.inputs} inputs, {rate:,.0f}/s, {len(lines)} defects",
            *lines,
            sep="\n  ",
            flush=True,
        )
    print(f"{total} inputs, {bad} defects")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
