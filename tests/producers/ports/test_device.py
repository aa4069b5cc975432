"""What a port says: netlink messages whole and spoiled, counters that matter, RDMA ports of a made sysfs."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.ports.device import (
    NetlinkLink,
    PortChange,
    PortCounters,
    PortWatch,
    is_link_counter,
    parse_links,
    rdma_ports,
)
from tests.waiting import wait_until

NEWLINK, DELLINK, ERROR = 16, 17, 2
LOWER_UP = 0x10000
CLONE_NEWNET = 0x40000000


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body + bytes(-len(body) % 4)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def link(name: str, flags: int, *attributes: bytes, kind: int = NEWLINK, index: int = 7) -> bytes:
    body = struct.pack("=BxHiII", 0, 1, index, flags, 0) + attribute(3, name.encode() + b"\0")
    return message(kind, body + b"".join(attributes))


def test_a_link_message_has_name_carrier_and_counters():
    stats = struct.pack("=24Q", *range(24))
    data = link("eth1", LOWER_UP, attribute(23, stats), attribute(48, struct.pack("=I", 5))) + link("eth2", 1)
    up, down = parse_links(data)
    assert (up.device, up.number, up.is_removed, up.carrier) == ("eth1", 7, False, True)
    assert up.counters["rx_crc_errors"] == 12
    assert up.counters["carrier_down_count"] == 5
    assert down == NetlinkLink("eth2", 7, False, False, {}, True)


def test_a_device_that_goes_has_no_carrier():
    (state,) = parse_links(link("eth1", LOWER_UP, kind=DELLINK))
    assert state.is_removed
    assert not state.carrier


def test_a_netlink_error_is_the_systems_own():
    with pytest.raises(OSError, match="No such device"):
        list(parse_links(message(ERROR, struct.pack("=i", -19) + bytes(16))))
    assert list(parse_links(message(ERROR, bytes(20)))) == []


@given(st.binary(max_size=300), st.integers(0, 120), st.binary(max_size=8))
def test_spoiled_messages_are_refused_or_read_and_nothing_else(noise, at, patch):
    whole = link("eth1", LOWER_UP, attribute(23, bytes(200)), attribute(35, bytes(4)))
    for data in (noise, whole[:at], whole[:at] + patch + whole[at + len(patch) :]):
        with contextlib.suppress(ValueError, OSError):
            for state in parse_links(data):
                assert isinstance(state, NetlinkLink)


def test_loopback_reports_its_state_once():
    watch = PortWatch("lo", None)
    try:
        assert [seen.carrier for seen in watch.read()] == [True]
        assert watch.read() == []
        assert watch.known
    finally:
        watch.close()


def test_a_device_that_the_kernel_does_not_know_is_no_error():
    watch = PortWatch("mlx5_0", None)
    try:
        assert watch.read() == []
        assert not watch.known
    finally:
        watch.close()


@pytest.mark.parametrize(
    "name",
    [
        "rx_crc_errors",
        "carrier_down_count",
        "rx_symbol_err_phy",
        "rx_discards_phy",
        "link_down_events_phy",
        "tx_errors_phy",
        "rx_out_of_buffer",
        "symbol_error",
        "link_downed",
        "port_rcv_errors",
        "roce_adp_retrans",
        "rx_prio3_pause",
        "port_xmit_wait",
        "np_cnp_sent",
        "rx_fec_errors",
        "rx_pfc_ena_frames_pri3",  # bnxt
        "pfc_pri3_rx_duration_us",
        "pfc_pri3_tx_transitions",
        "mac_rx_pfc_pri3_pkt_num",  # hns3
        "rx_pfc_frames",  # qede
        "rx_ppp3",  # cxgb4
        "rx_ovflow0",
        "bw_in_allowance_exceeded",  # ENA
        "pps_allowance_exceeded",
        "module_unplug",  # mlx5
        "outbound_pci_stalled_wr",
        "rp_cnp_handled",
        "np_ecn_marked_roce_packets",
        "RxECNMrkd",  # irdma
    ],
)
def test_counters_of_a_links_health_matter(name):
    assert is_link_counter(name)


@pytest.mark.parametrize(
    "name",
    [
        "rx_packets",
        "tx_bytes",
        "rx3_wqe_err",
        "rx_queue_0_drops",
        "tx_queue_3_tx_timeouts",
        "ch0_events",
        "interrupts",
        "rx_multicast_phy",
        "transferred",
        "port_rcv_data",
        "rx_xdp_drop",
    ],
)
def test_traffic_and_single_queues_do_not(name):
    assert not is_link_counter(name)


def make_rdma(sysfs: Path, device: str, netdev: str, **counters: str) -> Path:
    port = sysfs / "class/infiniband" / device / "ports/1"
    (port / "gid_attrs/ndevs").mkdir(parents=True)
    (port / "gid_attrs/ndevs/0").write_text(f"{netdev}\n")
    for folder in ("counters", "hw_counters"):
        (port / folder).mkdir()
    for name, text in counters.items():
        (port / ("hw_counters" if name.startswith("roce") else "counters") / name).write_text(text)
    return port


def test_rdma_ports_are_found_by_their_own_name_and_by_the_network_device_beneath(tmp_path):
    first = make_rdma(tmp_path, "mlx5_0", "eth0")
    second = make_rdma(tmp_path, "mlx5_1", "eth1")
    assert rdma_ports("eth1", tmp_path) == [second]
    assert rdma_ports("mlx5_0", tmp_path) == [first]
    assert rdma_ports("eth1", tmp_path, by_netdev=False) == []
    assert rdma_ports("eth9", tmp_path) == []
    assert rdma_ports("eth0", tmp_path / "none") == []


def test_grown_counters_are_returned_with_their_increase(tmp_path):
    port = make_rdma(
        tmp_path,
        "rxe0",
        "lo",
        symbol_error="5\n",
        link_downed="0",
        port_rcv_data="9",
        roce_slow_restart_cnps="1",
        port_rcv_errors="N/A (no PMA)",
    )
    counters = PortCounters("lo", None, tmp_path)
    try:
        assert counters.growth() == {}, "what was there before is no news"
        assert {"rdma:symbol_error", "rdma:link_downed", "rx_crc_errors"} <= counters.read().keys()
        assert not {"rdma:port_rcv_data", "rdma:port_rcv_errors"} & counters.read().keys()
        (port / "counters/symbol_error").write_text("12\n")
        (port / "counters/link_downed").write_text("1\n")
        growth = {name: found for name, found in counters.growth().items() if name.startswith("rdma:")}
        assert growth == {"rdma:symbol_error": (7, 12), "rdma:link_downed": (1, 1)}
        (port / "counters/symbol_error").write_text("3\n")
        assert "rdma:symbol_error" not in counters.growth(), "a counter that was set back has not grown"
        (port / "counters/symbol_error").write_text("4\n")
        assert counters.growth()["rdma:symbol_error"] == (1, 4)
    finally:
        counters.close()


def test_ethtool_counters_of_a_device_are_read_or_it_has_none():
    counters = PortCounters("lo", None)
    try:
        assert set(counters.read()) >= {"rx_errors", "tx_dropped"}
    finally:
        counters.close()
    names = [name for _, name in socket.if_nameindex()]
    for name in names:
        counters = PortCounters(name, None)
        try:
            assert all(value >= 0 for value in counters.read().values())
        finally:
            counters.close()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def add_pair() -> None:
    """Add a pair of devices, p0 and p1, that are up."""
    ip("link", "add", "p0", "type", "veth", "peer", "name", "p1")
    ip("link", "set", "p1", "up")
    ip("link", "set", "p0", "up")


@pytest.fixture
def in_network(inside):
    """Return a function that runs a test body in a network namespace of its own."""

    def run(body):
        def alone():
            assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
            return body()

        return inside(alone)

    return run


def change_of(watch: PortWatch) -> PortChange:
    """Return the next change, within 5 s."""
    return wait_until(lambda: next(iter(watch.read()), None), 5)


def test_a_renamed_device_is_followed(in_network):
    def body():
        add_pair()
        watch = PortWatch("p0", None)
        first = wait_until(lambda: [c for c in watch.read() if c.carrier], 5)
        ip("link", "set", "p0", "name", "enp9s0")
        ip("link", "set", "p1", "down")
        while_renamed = change_of(watch)
        ip("link", "set", "enp9s0", "name", "p0")
        ip("link", "set", "p1", "up")
        return bool(first), while_renamed.carrier, change_of(watch).carrier, watch.known

    assert in_network(body) == (True, False, True, True)


def test_a_device_that_comes_later_or_is_made_again_is_known(in_network):
    def body():
        watch = PortWatch("p0", None)
        nothing = wait_until(lambda: watch.read() == [] and not watch.known, 5)
        seen = []
        for _ in range(2):
            add_pair()
            wait_until(lambda: [seen.append(c.carrier) for c in watch.read()] and seen[-1], 5)
            known = watch.known
            ip("link", "del", "p0")
            wait_until(lambda: [seen.append(c.carrier) for c in watch.read()] and not seen[-1], 5)
        return nothing, known, seen[-1]

    assert in_network(body) == (True, True, False)


def test_a_port_that_the_administrator_took_down_is_no_torn_cable(in_network):
    def body():
        add_pair()
        watch = PortWatch("p0", None)
        wait_until(lambda: [c for c in watch.read() if c.carrier], 5)
        ip("link", "set", "p1", "down")
        torn = change_of(watch)
        ip("link", "set", "p1", "up")
        wait_until(lambda: [c for c in watch.read() if c.carrier], 5)
        ip("link", "set", "p0", "down")
        return torn, change_of(watch)

    torn, taken_down = in_network(body)
    assert torn[0::2] == (False, True)
    assert taken_down[0::2] == (False, False)
