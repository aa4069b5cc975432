"""Links of flows, as the flow reporter traces them, compared with the paths of real packets."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fabrictime.runtime.fleet import fabric_nics
from fabrictime.testbed.control import Testbed
from fabrictime.testbed.jobs.traffic import FlowSpec
from fabrictime.testbed.settings import FabricSettings

pytestmark = pytest.mark.fabric

SMALL = {"hosts": 4, "leaves": 2, "spines": 3}
RATE = 2_000_000


class Reporting:
    """A flow reporter of all hosts of a fabric, whose words come back to it as through the log."""

    def __init__(self, testbed: Testbed, sockets: Path, **settings: Any) -> None:
        from producers.flows.service import AddressTable, FlowReporter
        from producers.settings import FlowSettings
        from schemas import codec
        from streams.runtime.flow_routes import FlowRouteTable

        self.testbed, self.codec = testbed, codec
        self.book = FlowRouteTable()
        self.flows: dict[str, dict[str, Any]] = {}
        self.records: dict[str, dict[str, Any] | None] = {}
        self.settings = FlowSettings(socket=sockets, poll_ms=20, **settings)
        self.nics = fabric_nics(testbed.fabric)
        self.reporter = FlowReporter(self.settings, self.nics, AddressTable(), self.put)
        for nic in testbed.fabric.nics():
            self.reporter.on_announcement(
                nic.nic, {"addresses": [nic.address], "first_hop": self.first_hop(nic)}, 0
            )

    def first_hop(self, nic: Any) -> str:
        """Return the address that a NIC's own router answers from."""
        from producers.trace.sockets import open_trace_sockets

        netns = next(each.netns for each in self.nics if each.host == nic.host)
        target = next(each.address for each in self.nics if each.host != nic.host)
        tracer = open_trace_sockets(nic.address, netns)["UDP"]
        end = time.monotonic() + 10
        while time.monotonic() < end:
            tracer.send(61_000, (target, 9), 1, 1)
            found = [reply.hop for reply in tracer.replies() if reply.hop is not None]
            if found:
                tracer.close()
                return found[0]
        raise TimeoutError(nic.nic)

    def put(self, topic: str, key: str, value: bytes | None) -> None:
        assert topic == self.book.topic.name
        self.book.take(key.encode(), value)
        record = None if value is None else self.codec.decode(value, "FlowRoutes")
        self.records[key] = record
        self.reporter.on_routes(key, record, 0)

    def poll(self, whole: bool = False) -> None:
        self.reporter.read()
        for record in self.reporter.report(whole):
            for flow in record["flows"]:
                self.flows[flow["flow_id"]] = flow
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            self.reporter.registrations.serve(time.monotonic() + 0.002)
            self.reporter.trace()

    def until(self, condition: Callable[[], Any], limit_s: float = 30.0) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end, self.flows
            self.poll()

    def of(self, sport: int) -> dict[str, Any] | None:
        return next((flow for flow in self.flows.values() if flow["source_port"] == sport), None)

    def close(self) -> None:
        self.reporter.close()


def right(testbed: Testbed, flow: dict[str, Any]) -> bool:
    true = testbed.truth.path_of(
        flow["nic"], flow["peer"], flow["source_port"], flow["peer_port"], flow["protocol"].lower()
    )
    return bool(true) and flow["links"] == true


def port_over(testbed: Testbed, host: str, peer: str, protocol: str, first: int) -> int:
    """Return a port that takes UDP over one spine and TCP over another; any, where no spine is crossed."""
    spine = {"udp": "spine1", "tcp": "spine2"}[protocol]
    ports = range(first, first + 50) if protocol == "udp" else range(first + 50, first + 100)
    for port in ports:
        route = testbed.truth.path_of(f"{host}/eth1", f"{peer}/eth1", port, port + 1_000, protocol)
        if len(route) == 2 or any(spine in hop for hop in route):
            return port
    raise AssertionError(f"no port of {ports} takes {protocol} from {host} to {peer} over {spine}")


@pytest.mark.parametrize("hash_protocol", [False, True])
def test_flows_are_reported_with_the_links_that_their_packets_take(inside, hash_protocol):
    def body() -> Any:
        with TemporaryDirectory() as directory:
            sockets = Path(directory) / "flows.sock"
            settings = FabricSettings(**SMALL, hash_protocol=hash_protocol)
            with Testbed(settings, registrations=sockets) as testbed:
                from fabrictime.testbed.fabric.topology import topology_file

                file = Path(directory) / "topology.json"
                file.write_text(topology_file(testbed.fabric.plan).model_dump_json())
                reporting = Reporting(testbed, sockets, topology_file=file)
                start = testbed.traffic.start
                flows = []
                for protocol in ("udp", "tcp"):
                    for at, (a, b) in enumerate(((1, 3), (1, 4), (2, 3), (3, 1), (4, 2), (1, 2))):
                        sport = port_over(testbed, f"h{a}", f"h{b}", protocol, 41_000 + 100 * at)
                        ends = {"sport": sport, "dport": sport + 1_000, "job": "train"}
                        flows.append(start(FlowSpec(f"h{a}", f"h{b}", RATE, 60.0, protocol, **ends)))
                ports = [flow.sport for flow in flows]
                reporting.until(lambda: all((flow := reporting.of(port)) and flow["links"] for port in ports))
                flows_now = [reporting.of(port) for port in ports]
                found = [(flow["protocol"], right(testbed, flow), flow["links"]) for flow in flows_now]
                results = [flow.stop() for flow in flows]
                reporting.close()
                return found, [result.loss for result in results]

    found, losses = inside(body)
    assert [protocol for protocol, _, _ in found] == ["UDP"] * 6 + ["TCP"] * 6
    assert all(true for _, true, _ in found), found
    assert len({tuple(hops) for _, _, hops in found}) > 6, "not all of one way"
    assert all(loss in (None, 0) for loss in losses), "tracing harms no flow"


def test_routes_in_both_directions_are_found_for_a_flow_that_moves_and_its_sockets_get_no_packet(inside):
    def body() -> Any:
        import json
        import socket
        import struct

        from fabrictime.testbed.fabric.topology import topology_file
        from schemas.ipc import connect

        def opened(address: str) -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((address, 0))
            made.setblocking(False)
            return made

        def nothing_came(sock: socket.socket) -> bool:
            try:
                sock.recv(100)
            except BlockingIOError:
                return True
            return False

        with TemporaryDirectory() as directory:
            sockets, file = Path(directory) / "flows.sock", Path(directory) / "topology.json"
            with Testbed(FabricSettings(**SMALL), registrations=sockets) as testbed:
                fabric, truth = testbed.fabric, testbed.truth
                file.write_text(topology_file(fabric.plan).model_dump_json())
                reporting = Reporting(testbed, sockets, topology_file=file)
                a, b = fabric.nic("h1"), fabric.nic("h3")
                sender = fabric.open_in("h1", lambda: opened(a.address))
                receiver = fabric.open_in("h3", lambda: opened(b.address))
                sender.connect(receiver.getsockname())
                receiver.connect(sender.getsockname())
                sport, dport = sender.getsockname()[1], receiver.getsockname()[1]
                cookie = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
                line = {
                    "protocol": "udp",
                    "source_address": a.address,
                    "source_port": sport,
                    "peer_address": b.address,
                    "peer_port": dport,
                    "cookie": cookie,
                    "can": ["MOVE"],
                    "sent_bytes": 1000,
                    "at_ns": time.monotonic_ns(),
                }
                program = connect(sockets, 5)
                program.sendall(json.dumps(line).encode() + b"\n")

                def routes() -> Any:
                    return reporting.book.of(a.nic, b.nic, dport)

                reporting.until(
                    lambda: len(routes()) == 33 and all(route.reverse for route in routes().values())
                )
                wrong = [
                    port
                    for port, route in routes().items()
                    if list(route.links) != truth.likely_path_of(a.nic, b.nic, port, dport)
                    or list(route.reverse) != truth.likely_path_of(b.nic, a.nic, dport, port)
                ]
                (before,) = reporting.flows.values()
                other = next(port for port, route in routes().items() if list(route.links) != before["links"])
                moved = line | {
                    "source_port": other,
                    "flow": f"sock:{cookie}",
                    "sent_bytes": 2000,
                    "at_ns": time.monotonic_ns(),
                }
                program.sendall(json.dumps(moved).encode() + b"\n")
                reporting.until(lambda: reporting.of(other))
                after = dict(reporting.flows)
                expected = truth.likely_path_of(a.nic, b.nic, other, dport)
                quiet = nothing_came(sender) and nothing_came(receiver)
                sender.send(b"works")
                program.close()
                reporting.close()
                return sport, other, routes()[sport].links, wrong, before, after, expected, quiet

    sport, other, links, wrong, before, after, expected, quiet = inside(body)
    assert not wrong
    assert (before["source_port"], before["links"]) == (sport, list(links))
    (flow,) = after.values()
    assert (flow["flow_id"], flow["source_port"]) == (before["flow_id"], other)
    assert flow["links"] == expected, "known already when it moved"
    assert quiet
