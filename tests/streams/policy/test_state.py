"""Policy state: contention windows, configuration and the delay of retries."""

from __future__ import annotations

from typing import Any

from streams.policy.flows.flow import Flow
from streams.policy.rules import WINDOW_STALE_NS, Rules
from streams.policy.state import FIRST_PORT, LAST_PORT, PolicyState
from streams.runtime.flow_table import LiveFlow
from streams.runtime.units import NS_PER_S
from tests.records import make


def make_state() -> PolicyState:
    return PolicyState("s0", 1, None, None, lambda link: 1000, 1, Rules())  # type: ignore[arg-type]


def make_flow() -> Flow:
    live = LiveFlow("h1/b/qp:a:1:1", "h1/a", "h2/a", None, None, 1e8, False, False, (), 50_000, None)
    return Flow(live, path=50_000)


def window(link: str, **fields: Any) -> Any:
    given = {"state": "OPENED", "kind": "COLLISION", "opened_ns": 10, "update": 0, "updated_ns": 10, **fields}
    return make("ContentionWindow", link=link, **given)


def test_an_older_window_does_not_replace_a_newer_one() -> None:
    state = make_state()
    assert state.take_window(window("a>b", update=2))
    assert not state.take_window(window("a>b", update=1))
    assert not state.take_window(window("a>b", update=2)), "the same again"
    assert state.take_window(window("a>b", opened_ns=11, update=0))


def test_closed_and_stale_windows_are_not_open() -> None:
    state = make_state()
    state.begin(100 + WINDOW_STALE_NS)
    for link, fields in {
        "b>c": {"updated_ns": 101},
        "a>b": {"updated_ns": 101},
        "stale>x": {"updated_ns": 100},
        "closed>x": {"updated_ns": 101, "state": "CLOSED"},
    }.items():
        state.take_window(window(link, **fields))
    assert [each["link"] for each in state.open_windows()] == ["a>b", "b>c"]


def test_a_stale_incast_still_counts_until_it_is_closed() -> None:
    state = make_state()
    state.take_window(window("a>b", kind="INCAST"))
    state.begin(10**18)
    assert state.has_incast
    state.take_window(window("a>b", kind="INCAST", state="CLOSED", update=1))
    assert not state.has_incast


def test_a_new_configuration_ends_the_waiting_time_of_flows() -> None:
    state, flow = make_state(), make_flow()
    state.flows = {"f": flow}
    flow.tries, flow.wait_ns, flow.unconfirmed = 3, 99, 1
    flow.steered.extend([(1, ("a",)), (2, ("b",))])
    assert not state.limits_of("h1").act
    state.take_config({"*": make("ActuatorConfig", host="*", mode="ACT")})
    assert state.limits_of("h1").act
    assert (flow.tries, flow.wait_ns, flow.unconfirmed) == (0, 0, 0)
    assert list(flow.steered) == [(1, ("a",))], "the unconfirmed move does not count"


def test_each_try_doubles_the_delay_up_to_the_limit() -> None:
    state, flow = make_state(), make_flow()
    waits = []
    for flow.tries in (0, 1, 2, 1000):
        state.postpone(flow, 7)
        waits.append(flow.wait_ns - 7)
    assert waits == [NS_PER_S, 2 * NS_PER_S, 4 * NS_PER_S, state.rules.retry_max_ns]


def test_a_random_path_is_another_ephemeral_port() -> None:
    state, flow = make_state(), make_flow()
    for state.seq in range(200):
        path = state.random_path(flow)
        assert FIRST_PORT <= path <= LAST_PORT
        flow.path = path
        assert state.random_path(flow) != path
