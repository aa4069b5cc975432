"""Links: faults now, faults since the last audit, and queues that are tied to a link."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from fabrictime.testbed.audit.simulated import Simulated, railed
from schemas.records import AuditStatus, LinkHealth, LinkQueues
from streams.audit.fabric.link_state import link_health, link_history, link_queues
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET as NO_HOST
from tests.records import make, make_part

FLEET = railed(32, 4)
BARE = Simulated(FLEET).records(paths=(), delays=())
S = 1_000_000_000


def health(subject: str, state: str, **fields: Any) -> LinkHealth:
    return make(LinkHealth, subject=subject, state=state, **fields)


def failed(found: Any) -> list[tuple[str, str, str]]:
    return [(each.host, each.subject, each.text) for each in found if each.status is AuditStatus.FAILED]


def records(*rows: LinkHealth, since_ns: int = 0) -> FabricRecords:
    return FabricRecords(BARE.nics, health=rows, topology=BARE.topology, since_ns=since_ns)


def test_faulty_links_hosts_and_nics_are_named() -> None:
    rows = [
        health("h1:eth2<>leaf2:swp1", "DOWN", seq=2, text="down since then"),
        health("h1:eth2<>leaf2:swp1", "UP", seq=1),
        health("leaf1:swp9<>spine1:swp1", "GREY", loss_rate=0.05, text="grey"),
        health("h3", "DOWN", text="silent"),
        health("h4:eth1<>leaf1:swp4", "UP"),
    ]
    found = failed(link_health(records(*rows)))
    assert sorted(found) == [
        (NO_HOST, "leaf1:swp9<>spine1:swp1", "leaf1:swp9<>spine1:swp1 loses packets (5.00% of them): grey"),
        ("h1", "eth2", "h1:eth2<>leaf2:swp1 is down: down since then"),
        ("h3", "", "h3 is down: silent"),
    ]


def test_no_fault_passes_and_nothing_known_is_unknown() -> None:
    up = records(health("h4:eth1<>leaf1:swp4", "UP"))
    for find in (link_health, link_history):
        assert [each.status for each in find(up)] == [AuditStatus.PASSED]
        assert [each.status for each in find(records())] == [AuditStatus.UNKNOWN]


def test_probes_that_cross_links_prove_more_than_reports() -> None:
    """A fabric without a fault has no report at all."""
    simulated = Simulated(FLEET)
    for find in (link_health, link_history):
        [found] = find(simulated.records())
        assert found.status is AuditStatus.PASSED
        assert found.text.startswith("none of the ")
        lost = simulated.records(delays=Simulated(FLEET, dead=frozenset(FLEET.nic_ids)).delays())
        assert [each.status for each in find(lost)] == [AuditStatus.UNKNOWN]


def test_flaps_since_the_last_audit_count_and_older_ones_do_not() -> None:
    cable = "h1:eth2<>leaf2:swp1"
    flapped = health(
        cable, "UP", flap_ns=[5 * S, 15 * S, 16 * S], flaps_total=9, since_ns=16 * S, before="DOWN"
    )
    text = f"{cable} is up, but went down 2 times since the last audit, and was down 9 times in all"
    assert failed(link_history(records(flapped, since_ns=10 * S))) == [("h1", "eth2", text)]
    assert failed(link_history(records(flapped, since_ns=20 * S))) == []
    grey = health(cable, "UP", since_ns=16 * S, before="GREY")
    assert "is up, but was GREY since the last audit" in failed(link_history(records(grey, since_ns=S)))[0][2]
    down = health(cable, "DOWN", flap_ns=[5 * S])
    assert failed(link_history(records(down))) == []  # that is a finding of its own


def queues(
    rng: np.random.Generator,
    slow: str = "",
    aliased: str = "",
    busy: Mapping[str, float] = MappingProxyType({}),
    flows: bool = True,
) -> list[LinkQueues]:
    out = []
    for window in range(5):
        rows = []
        for at, link in enumerate(FLEET.link_ids):
            depth = float(rng.exponential(20_000)) * (60 if link == slow else 1)
            fields = {"link": link, "rate_bps": int(FLEET.rate_bps[at]), "depth_mean_bytes": depth}
            fields |= {"utilisation": busy.get(link, 0.5), "from_flows": flows, "group": int(link == aliased)}
            rows.append(make_part(LinkQueues, "LinkQueue", **fields))
        out.append(make(LinkQueues, window=window, slots=10, slot_ns=10, links=rows))
    return out


@pytest.mark.parametrize("seed", range(10))
def test_a_link_with_a_long_queue_is_found_among_its_kind(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slow = FLEET.link_ids[int(rng.integers(len(FLEET.link_ids)))]
    kept = FabricRecords(BARE.nics, queues=queues(rng, slow), topology=BARE.topology)
    found = failed(link_queues(kept))
    assert [text.partition(": ")[0] for _, _, text in found] == [slow]
    healthy = FabricRecords(BARE.nics, queues=queues(rng), topology=BARE.topology)
    assert [each.status for each in link_queues(healthy)] == [AuditStatus.PASSED]


def test_aliased_links_are_left_out_and_no_queues_are_unknown() -> None:
    slow = FLEET.link_ids[0]
    kept = FabricRecords(
        BARE.nics, queues=queues(np.random.default_rng(1), slow, slow), topology=BARE.topology
    )
    assert failed(link_queues(kept)) == []
    assert [each.status for each in link_queues(BARE)] == [AuditStatus.UNKNOWN]


def test_the_long_queue_of_a_busy_link_is_no_fault() -> None:
    slow = FLEET.link_ids[3]
    busy = queues(np.random.default_rng(1), slow, busy={slow: 0.9})
    kept = FabricRecords(BARE.nics, queues=busy, topology=BARE.topology)
    assert [each.status for each in link_queues(kept)] == [AuditStatus.PASSED]


def test_without_flow_reports_queues_are_unknown() -> None:
    rows = queues(np.random.default_rng(1), FLEET.link_ids[3], flows=False)
    kept = FabricRecords(BARE.nics, queues=rows, topology=BARE.topology)
    assert [each.status for each in link_queues(kept)] == [AuditStatus.UNKNOWN]
