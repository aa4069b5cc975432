"""Events of the network: their hosts, and those in a job's time."""

from __future__ import annotations

from fabrictime.postmortem.network import (
    Event,
    Interval,
    alert_event,
    contention_event,
    health_event,
    hosts_of,
    interval_of,
    lines,
    report,
)
from fabrictime.postmortem.observations import Observations, Step

S = 1_000_000_000


def event(from_s, until_s, *hosts):
    until_ns = None if until_s is None else until_s * S
    return Event("DOWN", "link", from_s * S, until_ns, frozenset(hosts), "text")


def test_hosts_of_links_cables_and_nics_are_known_without_their_domains():
    link = {"subject": "h1:eth0<>leaf1:Eth1/1", "links": ["h1.cluster.local:eth0>leaf1:Eth1/1"]}
    record = {**link, "state": "DOWN", "since_ns": 1, "text": ""}
    assert health_event(record).hosts == {"h1", "leaf1"}
    alert = {"nics": ["h2.cluster.local/mlx5_0"], "links": [], "subject": "h2/mlx5_0", "severity": "CRITICAL"}
    alert |= {"kind": "DOWN", "raised_ns": 1, "cleared_ns": None, "text": "gone"}
    assert alert_event(alert).hosts == {"h2"}
    flow = {"nic": "h3/eth0", "peer": "10.0.0.4/eth0"}
    window = {"link": "leaf1:p1>spine1:p2", "flows": [flow], "kind": "COLLISION"}
    window |= {"opened_ns": 1, "closed_ns": 2, "text": ""}
    assert contention_event(window).hosts == {"leaf1", "spine1", "h3", "10.0.0.4"}


def test_only_events_in_the_time_of_the_job_count():
    events = [event(1, 5, "h1"), event(8, 30, "h1"), event(25, None, "h2"), event(1, None, "h1", "h7")]
    network = report(events, {"h1"}, Interval(10 * S, 20 * S))
    assert [own.from_ns // S for own in network.events] == [1, 8]
    assert network.others == 0
    assert report(events, {"h1"}, Interval(10 * S, 40 * S)).others == 1


def test_a_folder_without_times_of_a_clock_has_no_interval():
    out = Observations()
    out.steps.append(Step("1.0", "FAILED", 1, 0, ("n1.cluster",), "", None))
    assert interval_of(out) is None
    assert hosts_of(out) == {"n1"}


def test_many_events_are_cut_and_counted():
    network = report([event(1, None, "h1")] * 40, {"h1"}, Interval(0, 2 * S))
    assert len(lines(network)) == 13
    assert "28 more events" in lines(network)[-1]
