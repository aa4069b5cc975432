"""Counters of NICs: the names of each driver, TCP of hosts with one NIC, increments between two records."""

from __future__ import annotations

from pathlib import Path

import pytest

from producers.collectives.nic_counters import FIELDS, NicCounters, counter_values, tcp_values
from producers.ports.device import is_link_counter
from producers.settings import NicSettings


def test_every_name_is_read_from_the_port():
    names = {name.removeprefix("rdma:") for choices in FIELDS.values() for names in choices for name in names}
    names -= {"rx_prio_pause", "tx_prio_pause"}
    assert [name for name in sorted(names) if not is_link_counter(name)] == []
    assert is_link_counter("rx_prio3_pause")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (  # mlx5
            {
                "rdma:np_cnp_sent": 5,
                "rdma:rp_cnp_handled": 6,
                "rdma:np_ecn_marked_roce_packets": 7,
                "rx_ecn_mark": 1,
                "rdma:packet_seq_err": 2,
                "rdma:local_ack_timeout_err": 3,
                "rdma:out_of_sequence": 4,
                "rx_prio3_pause": 10,
                "rx_prio4_pause": 20,
                "tx_global_pause": 1,
                "tx_prio3_pause": 2,
                "rx_prio3_pause_duration": 999,
            },
            {
                "cnp_sent": 5,
                "cnp_received": 6,
                "ce_received": 7,
                "retransmits": 5,
                "out_of_sequence": 4,
                "pause_received": 30,
                "pause_sent": 3,
            },
        ),
        (  # bnxt_re
            {
                "rdma:rx_cnp_pkts": 1,
                "rdma:tx_cnp_pkts": 2,
                "rdma:to_retransmits": 3,
                "rdma:oos_drop_count": 4,
            },
            {"cnp_received": 1, "cnp_sent": 2, "retransmits": 3, "out_of_sequence": 4},
        ),
        ({"rx_pfc_ena_frames_pri3": 4, "rx_pfc_ena_frames_pri5": 1}, {"pause_received": 5}),  # bnxt
        (
            {"mac_tx_pfc_pri3_pkt_num": 4, "mac_rx_pfc_pri0_pkt_num": 2},
            {"pause_sent": 4, "pause_received": 2},
        ),
        ({"rx_ppp3": 4, "tx_ppp3": 1}, {"pause_received": 4, "pause_sent": 1}),  # cxgb4
        ({"rx_pfc_frames": 3}, {"pause_received": 3}),  # qede
        ({"rx_priority_3_xoff.nic": 6}, {"pause_received": 6}),  # ice
        ({"rdma:cnpSent": 1, "rdma:RxECNMrkd": 2}, {"cnp_sent": 1, "ce_received": 2}),  # irdma
        ({"rdma:retrans_pkts": 9, "rx_errors": 1}, {"retransmits": 9}),  # EFA
        ({}, {}),
    ],
)
def test_drivers_have_their_own_names(found, expected):
    assert counter_values(found) == expected


def test_tcp_is_read_by_the_names_of_its_columns():
    snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoMin RetransSegs\nTcp: 200 17\n"
    netstat = "TcpExt: TCPOFOQueue\nTcpExt: 3\nIpExt: InCEPkts\nIpExt: 4\n"
    assert tcp_values(snmp, netstat) == {"retransmits": 17, "out_of_sequence": 3, "ce_received": 4}
    assert tcp_values("", "Tcp: RetransSegs\n", "Tcp: RetransSegs\nTcp: many\n") == {}


def test_increments_are_between_two_totals():
    before, now = {"h/a": {"cnp_sent": 5}}, {"h/a": {"cnp_sent": 9, "pause_sent": 0}, "h/b": {"cnp_sent": 0}}
    (found,) = NicCounters.increments(before, now, ["h/a", "h/b", "h/unknown"])
    assert (found["nic"], found["cnp_sent"], found["pause_sent"], found["retransmits"]) == ("h/a", 4, 0, None)
    assert NicCounters.increments(now, now, ["h/a"]) == []


def test_a_port_in_sysfs_is_read(tmp_path):
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    (port / "hw_counters").mkdir(parents=True)
    counter: Path = port / "hw_counters" / "np_cnp_sent"
    counter.write_text("100\n")
    nic = NicSettings(host="h1", device="lo", address="127.0.0.1", rdma_device="mlx5_0")
    counters = NicCounters([nic], tmp_path)
    counters.read()
    counter.write_text("160\n")
    counters.read()
    counter.write_text("20\n")  # the driver was loaded again
    counters.read()
    counter.write_text("25\n")
    counters.read()
    assert counters.totals()["h1/lo"]["cnp_sent"] == 65
    assert counters.totals()["h1/lo"]["retransmits"] >= 0, "of TCP, because the host has one NIC"
    counters.close()
