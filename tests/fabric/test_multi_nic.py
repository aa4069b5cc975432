"""Hosts with many NICs in small real namespaces: egress, arrival, reachability of peers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from fabrictime.testbed.fabric.fabric import FabricError
from fabrictime.testbed.fabric.multi_nic import FORMS, MultiNic, MultiNicPort

KEY = bytes(range(16))
PORT = 9319
PASSING = sorted(FORMS.keys() - {"arp-flux", "strict-filter"})


def settings_of(port: MultiNicPort) -> Any:
    from producers.settings import NicSettings

    return NicSettings(
        host=port.host, device=port.device, address=port.address, netns=port.netns, rail=port.rail
    )


def sent_by(net: MultiNic, port: MultiNicPort) -> int:
    """Return the packets that the host's cables of a NIC have sent."""
    counts = net.sent_packets(port.host)
    return sum(counts[cable] for cable, _ in port.cables)


def engine_of(port: MultiNicPort, **settings: Any) -> Any:
    from native.core.probe import Engine, open_sockets
    from producers.netns import in_netns
    from producers.nic_network import read_nic_network

    network = read_nic_network(settings_of(port))
    sockets = in_netns(port.netns, lambda: open_sockets(port.address, PORT, 9320, 2, device=network.device))
    return Engine(
        sockets, nic=port.nic, key=KEY, device_index=network.index, rate_pps=500.0, collect_delay_ms=5.0
    )


def run_probers(net: MultiNic, seconds: float = 0.4) -> dict[str, dict[str, float]]:
    """Probe from each NIC to the next host's NIC of the rail; return the engines' counters."""
    import threading

    from native.core.probe import Peer

    engines = {port.nic: engine_of(port) for port in net.ports}
    for port in net.ports:
        peer = net.peer_of(port)
        engines[port.nic].set_peers([Peer(peer.nic, peer.address, PORT)])
    threads = [
        threading.Thread(target=engine.run, args=(seconds,), daemon=True) for engine in engines.values()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {nic: dict(engine.counters()) for nic, engine in engines.items()}
    for engine in engines.values():
        engine.close()
    return found


def in_form(form: str, inside: Callable[..., Any], work: Callable[[MultiNic], Any]) -> Any:
    """Return what `work` finds on two hosts in a form; skip where the kernel lacks its devices."""

    def tried() -> Any:
        try:
            with MultiNic(FORMS[form], 2) as net:
                return work(net)
        except FabricError as error:
            if "lacks" in str(error):
                return str(error)
            raise

    result = inside(tried)
    if isinstance(result, str):
        pytest.skip(result)
    return result


@pytest.mark.parametrize("form", PASSING)
def test_probes_leave_and_arrive_by_their_own_nic(form: str, inside: Callable[..., Any]) -> None:
    def work(net: MultiNic) -> Any:
        before = {port.nic: sent_by(net, port) for port in net.ports}
        counters = run_probers(net)
        return counters, {port.nic: sent_by(net, port) - before[port.nic] for port in net.ports}

    counters, sent = in_form(form, inside, work)
    for nic, each in counters.items():
        assert each["samples"] > 5, (nic, each)
        assert each["lost"] <= 0.5 * each["requests_sent"]  # a busy machine answers late
        assert each["wrong_device"] == 0
        packets = each["requests_sent"] + each["replies_sent"]
        assert packets <= sent[nic] <= packets * 2 + 40, (nic, sent, each)


def egress_of(port: MultiNicPort, peer: str, device: str | None) -> str | None:
    from producers.egress import EgressCheck, foreign_egress
    from producers.nic_network import read_nic_network

    check = EgressCheck(port.address, device, port.netns)
    try:
        check.send(peer)
        end_s = time.monotonic() + 5
        while (index := check.device_index()) is None and time.monotonic() < end_s:
            time.sleep(0.01)  # the timestamp of a packet that waits for ARP
        assert index is not None
        return foreign_egress(port.device, index, read_nic_network(settings_of(port)).interfaces)
    finally:
        check.close()


def kernel_devices(port: MultiNicPort, peer: MultiNicPort) -> set[str]:
    """Return the devices by which the kernel routes packets between two NICs' addresses."""
    from producers.interfaces import route_devices
    from producers.netns import in_netns

    family = socket.AF_INET6 if ":" in port.address else socket.AF_INET

    def read() -> set[str]:
        try:
            return {socket.if_indextoname(n) for n in route_devices(family, peer.address, port.address)}
        except OSError:
            return set()

    return in_netns(port.netns, read)


def audited_devices(port: MultiNicPort, peer: MultiNicPort) -> set[str]:
    """Return the same by the audit's look-up in the host's rules and routes."""
    from producers.audit.backend.source_routes import devices_of
    from producers.audit.host.live_network import LiveNetwork

    live = LiveNetwork(port.netns, (port.device,))
    return set(devices_of(live.rules(), live.routes(), ip_address(port.address), ip_address(peer.address)))


@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"arp-flux", "strict-filter"}))
def test_inventory_egress_and_routes_are_right_on_real_devices(form: str, inside: Callable[..., Any]) -> None:
    def work(net: MultiNic) -> Any:
        from producers.nic_network import read_nic_network

        found = {}
        for port in net.ports:
            network = read_nic_network(settings_of(port))
            peers = [each for each in net.ports if each.host != port.host]
            found[port.nic] = (
                (network.device, network.networks),
                egress_of(port, net.peer_of(port).address, network.device),
                [(kernel_devices(port, each), audited_devices(port, each)) for each in peers],
            )
        return found

    result = in_form(form, inside, work)
    kind = FORMS[form]
    for nic, ((device, networks), egress, routes) in result.items():
        assert device == nic.partition("/")[2]
        assert egress is None
        rail = next(
            rail
            for rail in range(kind.nics)
            if device in (kind.device.format(rail), f"eth{rail}.{100 + rail}")
        )
        if kind.link_local:
            assert networks == ("fe80::/64",)
            continue  # the scope of the address chooses the device
        subnet = 0 if kind.one_subnet else rail
        wanted = str(ip_network(f"fd09:{subnet:x}::/64" if kind.ipv6 else f"10.9.{subnet}.0/24"))
        assert set(networks) - {"fe80::/64"} == ({"0.0.0.0/0"} if kind.gateways else {wanted})
        if not kind.vrf:  # packets of a VRF are bound to it
            for by_kernel, by_audit in routes:
                assert by_audit == by_kernel, nic


def test_the_kernel_names_the_device_that_packets_leave_by(inside: Callable[..., Any]) -> None:
    def work() -> Any:
        with MultiNic(FORMS["one-subnet"], 2) as net:
            port = net.port("h1/eth1")
            peer = net.peer_of(port).address
            return [egress_of(port, peer, device) for device in (None, "eth0", "eth1")]

    assert inside(work) == ["eth0", "eth0", None]


def test_arp_flux_is_counted(inside: Callable[..., Any]) -> None:
    def work() -> Any:
        from pyroute2 import IPRoute

        with MultiNic(FORMS["arp-flux"], 2) as net:
            port = net.port("h2/eth1")

            def mislead() -> None:
                """Send packets for h2/eth1 to the MAC of h2/eth0, as after a wrong ARP answer."""
                with IPRoute() as ip:
                    for index in (socket.if_nametoindex(name) for name in ("eth0", "eth1")):
                        ip.neigh("replace", ifindex=index, dst=port.address, lladdr=mac, state=0x80)

            def read_mac() -> str:
                with IPRoute() as ip:
                    return str(ip.get_links(ifname="eth0")[0].get_attr("IFLA_ADDRESS"))

            mac = net.open_in("h2", read_mac)
            net.open_in("h1", mislead)
            return run_probers(net)

    counters = inside(work)
    assert counters["h2/eth1"]["wrong_device"] > 5


def test_drops_by_the_reverse_path_filter_are_reported(inside: Callable[..., Any]) -> None:
    def work() -> Any:
        from producers.nic_network import read_nic_network
        from producers.probe.nic_watch import NicWatch

        with MultiNic(FORMS["strict-filter"], 2) as net:
            counters = run_probers(net)
            problems = {}
            for port in net.ports:
                watch = NicWatch(settings_of(port), read_nic_network(settings_of(port)))
                problems[port.nic] = watch.check([net.peer_of(port).address], 0)
                watch.close()
            return counters, problems

    counters, problems = inside(work)
    assert counters["h1/eth1"]["samples"] == 0
    assert problems["h1/eth0"] is None
    assert problems["h1/eth1"] == (
        "strict reverse path filtering drops its peers' packets, as routes to them lead by eth0: "
        "set rp_filter to 2, or add a policy rule for its address"
    )


@pytest.mark.parametrize("form", ["one-subnet", "link-local"])
def test_traces_of_udp_leave_by_the_nic_and_those_of_tcp_as_routed(
    form: str, inside: Callable[..., Any]
) -> None:
    def work() -> Any:
        from producers.trace.sockets import open_trace_sockets

        with MultiNic(FORMS[form], 2) as net:
            port = net.port("h1/eth1")
            tracers = open_trace_sockets(port.address, port.netns, device=port.device)
            sent = {}
            for protocol, tracer in tracers.items():
                before = net.sent_packets("h1")
                for number in range(40):
                    tracer.send(9320, (net.peer_of(port).address, PORT), 8, number)
                after = net.sent_packets("h1")
                sent[protocol] = max(after, key=lambda cable: after[cable] - before[cable])
                tracer.close()
            return sent

    routed = "eth0" if form == "one-subnet" else "eth1"
    assert inside(work) == {"UDP": "eth1", "TCP": routed}


def passed_sizes(net: MultiNic, limit_bytes: int) -> dict[tuple[str, str], set[int]]:
    """Return (NIC, peer) to the largest packets that its paths pass, while h2's NICs drop larger ones."""
    from fabrictime.testbed.fabric import nft
    from native.core.probe import Peer
    from producers.probe.size_prober import SizeProber

    engines = {port.nic: engine_of(port) for port in net.ports}
    probers = {}
    for port in net.ports:
        peer, engine = net.peer_of(port), engines[port.nic]
        engine.set_peers([Peer(peer.nic, peer.address, PORT)])
        probers[port.nic] = SizeProber(engine, port.address, 20.0, 100.0)
        probers[port.nic].set_mtus(1_500, {peer.nic: 1_500})
        if port.host == "h2":
            net.open_in("h2", lambda port=port: nft.add_size_drop(port.device, port.device, limit_bytes))
    with running(engines.values()):
        return _wait_for_sizes(net, probers, limit_bytes)


@contextlib.contextmanager
def running(engines: Collection[Any]) -> Iterator[None]:
    """Run probe engines, and close them at the end."""
    threads = [threading.Thread(target=engine.run, args=(30.0,), daemon=True) for engine in engines]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for engine in engines:
            engine.stop()
        for thread in threads:
            thread.join()
        for engine in engines:
            engine.close()


def _wait_for_sizes(
    net: MultiNic, probers: Mapping[str, Any], limit_bytes: int
) -> dict[tuple[str, str], set[int]]:
    """Step the size probers until all paths have the size that is expected, or for 25 s."""
    wanted = {
        (port.nic, net.peer_of(port).nic): {limit_bytes if port.host == "h1" else 1_500} for port in net.ports
    }
    rows: dict[tuple[str, str, int], int] = {}
    found: dict[tuple[str, str], set[int]] = {}
    end_s = time.monotonic() + 25
    while time.monotonic() < end_s and not (found == wanted and len(rows) == 2 * len(net.ports)):
        for nic, prober in probers.items():
            for row in prober.step(time.monotonic()):
                rows[nic, row["peer"], row["path"]] = row["passed_bytes"]
        found = {key: {size for (*pair, _), size in rows.items() if tuple(pair) == key} for key in wanted}
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("form", ["own-subnets", "ipv6-only", "link-local"])
def test_the_largest_packet_of_a_path_is_found_to_the_byte(form: str, inside: Callable[..., Any]) -> None:
    found = in_form(form, inside, lambda net: passed_sizes(net, 1_400))
    assert len(found) == 4
    for (nic, peer), sizes in found.items():
        assert sizes == {1_400 if nic.startswith("h1/") else 1_500}, (nic, peer)
