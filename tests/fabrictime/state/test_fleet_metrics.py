"""The fleet's state as metrics: states of links, contention, alerts, jobs and policy."""

import pytest

from fabrictime.state.fleet_metrics import FleetMetrics
from schemas.metrics.base import Detail
from schemas.metrics.sources import Sources
from schemas.metrics.table import METRIC_OF_SAMPLE
from schemas.topics import ALERTS, CONFIG, CONTENTION, INVENTORY, LINK_HEALTH, POLICY_CYCLES, QUEUES
from tests.records import make, make_part

NOW_NS = 1_700_000_000_000_000_000
LINK = "leaf1:swp3>spine1:swp1"


@pytest.fixture
def metrics(state):
    return FleetMetrics(state, lambda: NOW_NS, lambda: 2, Sources())


def figures(metrics, *details):
    sources = metrics._sources
    sources.details = frozenset(details)
    metrics._next_cables_s = 0.0
    samples = {(s.name.removeprefix("fabrictime_"), *s.labels): s.value for s in sources.collect()}
    assert samples["metrics_errors_total",] == 0
    return samples


def health(subject, link_state, kind="LINK"):
    links = [subject] if kind == "LINK" else []
    return make("LinkHealth", subject=subject, kind=kind, state=link_state, links=links, seq=1)


def test_an_empty_state_has_all_counts_as_zero(metrics):
    seen = figures(metrics)
    assert seen["links", "DOWN"] == seen["nic_faults", "DOWN"] == seen["jobs", "HANG"] == 0
    assert seen["contention_windows", "INCAST"] == seen["alerts_active", "LINK_DOWN", "CRITICAL"] == 0
    assert seen["records_rejected_total",] == 2
    assert ("state_age_seconds",) not in seen


def test_states_are_counted(metrics, state):
    for nic in ("h1/eth0", "h2/eth0"):
        host = nic.partition("/")[0]
        state.take(INVENTORY.name, nic, make("Nic", nic=nic, host=host, device="eth0"), NOW_NS)
    state.take(LINK_HEALTH.name, LINK, health(LINK, "DOWN"), NOW_NS)
    state.take(LINK_HEALTH.name, "h1/eth0", health("h1/eth0", "GREY", "NIC"), NOW_NS)
    window = make("ContentionWindow", window_id="w", state="OPENED", kind="INCAST", updated_ns=NOW_NS)
    state.take(CONTENTION.name, LINK, window, NOW_NS)
    alert = make("Alert", alert_id="a", kind="LINK_DOWN", severity="CRITICAL", state="RAISED")
    state.take(ALERTS.name, LINK, alert, NOW_NS)
    seen = figures(metrics)
    assert (seen["fleet_nics",], seen["fleet_hosts",]) == (2, 2)
    assert (seen["links", "DOWN"], seen["nic_faults", "GREY"]) == (1, 1)
    assert seen["contention_windows", "INCAST"] == 1
    assert seen["alerts_active", "LINK_DOWN", "CRITICAL"] == 1
    assert seen["state_age_seconds",] >= 0


def test_policy_and_its_limits(metrics, state):
    suppressed = [
        make_part("PolicyCycles", "SuppressedAction", flow_id=f"f{k}", action="REROUTE", cause=cause)
        for k, cause in enumerate(("MOVED_SHARE", "A_NEW_LIMIT"))
    ]
    cycle = make_part("PolicyCycles", "PolicyCycle", now_ns=NOW_NS, suppressed=suppressed)
    record = make("PolicyCycles", shard="s", flows=10, movable=4, at_ns=NOW_NS, cycles=[cycle])
    state.take(POLICY_CYCLES.name, "s", record, NOW_NS)
    state.take(CONFIG.name, "*", make("ActuatorConfig", mode="ACT"), NOW_NS)
    seen = figures(metrics)
    assert (seen["policy_flows",], seen["policy_movable_flows",], seen["acting",]) == (10, 4, 1)
    assert (seen["suppressed_actions", "MOVED_SHARE"], seen["suppressed_actions", "OTHER"]) == (1, 1)
    assert seen["action_budget_used_ratio", "MOVED_SHARE"] == 0


def test_series_of_links_come_only_with_their_setting(metrics, state):
    state.take(LINK_HEALTH.name, LINK, health(LINK, "DOWN"), NOW_NS)
    queue = make_part(
        "LinkQueues", "LinkQueue", link=LINK, depth_mean_bytes=1_000.0, utilisation=0.5, rate_bps=8_000_000
    )
    record = make("LinkQueues", slots=1, slot_ns=1_000_000_000, window_start_ns=NOW_NS, links=[queue])
    state.take(QUEUES.name, "s", record, NOW_NS)
    per_link = {name for name, metric in METRIC_OF_SAMPLE.items() if metric.detail is Detail.PER_LINK}
    assert not {f"fabrictime_{key[0]}" for key in figures(metrics)} & per_link
    seen = figures(metrics, Detail.PER_LINK)
    assert seen["link_up", LINK] == 0
    assert seen["link_queue_bytes", LINK] == seen["queue_max_bytes",] == 1_000
    assert seen["link_utilisation_ratio", LINK] == pytest.approx(0.5)
    assert seen["queue_delay_max_seconds",] == pytest.approx(1e-3)
