"""Flow history: samples of watched hosts, and the effect of an action on a flow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fabrictime.state.flow_history import NO_EFFECT, SIDE_NS, FlowHistory, Sample, effect

S = 1_000_000_000


def message(
    rate_bps: float = 1e8, path: int = 1, links: tuple[str, ...] = ("a>b",), host: str = "h1"
) -> bytes:
    flow = {
        "flow_id": f"{host}/b/qp:e:1:1",
        "interval_ns": S,
        "rate_bps": rate_bps,
        "rtt_ns": None,
        "source_port": path,
        "rate_limit_bps": None,
        "links": links,
    }
    return json.dumps({"flows": [flow]}).encode()


def decode(value: bytes) -> Any:
    return json.loads(value)


def test_a_newly_watched_host_has_the_samples_of_the_last_seconds() -> None:
    history = FlowHistory(decode, raw_ns=3 * S)
    for second in range(10):
        history.take("h1", message(rate_bps=second), second * S)
    assert history.flows() == []
    history.watch("h1", 100 * S)
    assert [sample.rate_bps for sample in history.of("h1/b/qp:e:1:1")] == [6, 7, 8, 9]


@pytest.mark.parametrize("jump_s", [120, 8 * 3600, -30])
def test_samples_go_on_after_log_time_was_wrong(jump_s: int) -> None:
    history = FlowHistory(decode)
    history.watch("h1", 10**9 * S)
    for second in range(1000, 1030):
        wrong_s = jump_s if 1010 <= second < 1020 else 0
        history.take("h1", message(rate_bps=second), (second + wrong_s) * S)
    found = history.of("h1/b/qp:e:1:1")
    assert [sample.rate_bps for sample in found][-10:] == list(range(1020, 1030))
    assert [sample.end_ns for sample in found] == sorted(sample.end_ns for sample in found)


def test_a_watch_ends_and_other_hosts_are_not_sampled() -> None:
    history = FlowHistory(decode)
    history.take("h1", message(), 1 * S)
    history.watch("h1", 3 * S)
    for second in (2, 3, 4):
        history.take("h1", message(), second * S)
        history.take("h2", message(host="h2"), second * S)
    assert [sample.end_ns // S for sample in history.of("h1/b/qp:e:1:1")] == [1, 2, 3]
    assert history.flows() == ["h1/b/qp:e:1:1"]


def test_a_message_read_again_adds_no_sample_and_a_bad_one_is_skipped() -> None:
    history = FlowHistory(decode)
    history.watch("h1", 10 * S)
    history.take("h1", message(), 1 * S)
    history.take("h1", message(), 1 * S)
    history.take("h1", b"not json", 2 * S)
    assert len(history.of("h1/b/qp:e:1:1")) == 1


def test_a_restart_drops_the_samples_of_one_host() -> None:
    history = FlowHistory(decode)
    for host in ("h1", "h11"):
        history.watch(host, 10 * S)
        history.take(host, message(host=host), 1 * S)
    history.restart("h1")
    assert history.flows() == ["h11/b/qp:e:1:1"]


def sample(end_ns: int, rate_bps: float, links: tuple[str, ...], rtt_ns: int | None = None) -> Sample:
    return Sample(end_ns - S, end_ns, rate_bps, rtt_ns, 1, None, links)


def test_an_effect_compares_whole_reports_on_both_sides() -> None:
    samples = [
        sample(9 * S, 100.0, ("a", "b", "d"), 10),
        sample(10 * S, 300.0, ("a", "b", "d"), 30),
        sample(11 * S, 999.0, ("a", "b", "d"), 999),  # the action falls into its interval
        sample(12 * S, 600.0, ("a", "c", "d")),
    ]
    found = effect(samples, 10 * S, 10 * S + S // 2)
    assert (found.before_bps, found.before_rtt_ns) == (200.0, 20.0)
    assert (found.after_bps, found.after_rtt_ns) == (600.0, None)
    assert (found.left, found.taken) == (("b",), ("c",))


def test_an_effect_without_reports_is_unknown() -> None:
    assert effect([], 10 * S, 11 * S) == NO_EFFECT
    old = [sample(10 * S - SIDE_NS, 1.0, ("a",))]
    assert effect(old, 10 * S, 11 * S) == NO_EFFECT, "a report that ended too long before does not count"
    assert effect([sample(10 * S, 5.0, ("a",))], 10 * S, 11 * S).before_bps == pytest.approx(5)
