"""What keeps a NIC's packets from it, in words. Real hosts: tests/fabric/test_multi_nic.py."""

from __future__ import annotations

from producers.nic_network import read_nic_network
from producers.probe.nic_watch import NicWatch, problems_of
from producers.settings import NicSettings


def test_each_problem_has_its_remedy():
    assert problems_of(None, 0, None) is None
    text = problems_of("eth0", 7, "eth2")
    assert text is not None
    egress, arrived, filtered = text.split("; ")
    assert egress == "its packets leave by eth0"
    assert arrived == (
        "7 packets for it arrived by another NIC of this host: set arp_ignore to 1 and arp_announce to 2"
    )
    assert filtered.startswith("strict reverse path filtering drops its peers' packets, as routes to them")
    assert filtered.endswith("set rp_filter to 2, or add a policy rule for its address")


def test_arrivals_are_those_since_the_last_check():
    nic = NicSettings(host="a", device="lo", address="127.0.0.1")
    watch = NicWatch(nic, read_nic_network(nic))
    assert "5 packets for it arrived by another NIC" in str(watch.check(["127.0.0.1"], 5))
    assert watch.check(["127.0.0.1"], 5) is None
    assert watch.egress is None
    watch.close()


def test_a_rewritten_dscp_is_reported_while_it_lasts():
    nic = NicSettings(host="a", device="lo", address="127.0.0.1")
    watch = NicWatch(nic, read_nic_network(nic))
    assert watch.check(["127.0.0.1"], 0, 9) is None  # a route that changed, or a fault of one packet
    assert str(watch.check(["127.0.0.1"], 0, 900)).startswith(
        "the DSCP of 891 of its probes changed on the way"
    )
    assert watch.check(["127.0.0.1"], 0, 900) is None
    watch.close()
