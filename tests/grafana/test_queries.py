"""The panels' queries on a filled history: figures of known rows, and the plugin's macros."""

import pytest

from grafana import queries


def test_figures_are_right(asked):
    nics = {"nic": ["h0/eth0", "h3/eth0"], "peer": ["h1/eth0"]}
    assert asked(queries.PAIRS).result_rows == [(12,)]
    rows = {(nic, peer): p99 for nic, peer, p99 in asked(queries.PAIR_MATRIX, **nics).result_rows}
    assert set(rows) == {("h0/eth0", "h1/eth0"), ("h3/eth0", "h1/eth0")}
    assert 8192 <= rows["h0/eth0", "h1/eth0"] <= 10240
    assert 14336 <= rows["h3/eth0", "h1/eth0"] <= 16384
    [(loss,)] = asked(queries.LOSS).result_rows
    assert loss == pytest.approx(0.1 / 10.1)
    assert asked(queries.CLOCK_COUNT).result_rows == [(4, 0, 0)]
    changes = {row[2] for row in asked(queries.CLOCK_OFFSETS, clock=["h2/system"]).result_rows}
    assert max(map(abs, changes)) < 7
    states = asked(queries.CLOCK_STATES).result_rows
    assert {row[1:] for row in states} == {(4, 0, 0)}
    assert {row[1:] for row in asked(queries.BOUND_SPREAD).result_rows} == {(90.0, 90.0, 90.0)}
    assert {row[3] for row in asked(queries.RESIDUAL_SPREAD).result_rows} == {15.0}
    states_of_clocks = asked(queries.STATE_ROWS, clock=["h0/system", "h3/system"]).result_rows
    assert {row[1:] for row in states_of_clocks} == {("h0/system", 2), ("h3/system", 2)}
    events = asked(queries.CLOCK_EVENTS, clock=["h2/system", "h3/system"]).result_rows
    assert {row[1:6] for row in events} == {
        ("h3/system", "s0", "STEP", 1500.0, None),
        ("h2/system", "s0", "RATE_CHANGE", None, 1500.0),
    }
    assert len(events) == 6
    assert asked(queries.SUSPECT_COUNT).result_rows == [(1,)]
    [(prober, peer, asymmetry, sigma, weight, windows, *_)] = asked(queries.SUSPECTS).result_rows
    assert (prober, peer, sigma, weight, windows) == ("h1/eth0", "h2/eth0", 4.0, 0.05, 60)
    assert -302 <= asymmetry <= -300
    late = asked(queries.LATENESS).result_rows
    assert [row[1] for row in late] == pytest.approx([200.0] * len(late))


def test_figures_of_the_fabric_are_right(asked):
    assert asked(queries.LINK_COUNT).result_rows == [(0, 0, 1)]
    timelines = {}
    for _, subject, state in asked(queries.LINK_ROWS).result_rows:
        timelines.setdefault(subject, []).append(state)
    assert set(timelines) == {"leaf1:swp3<>spine1:swp1", "h1/eth0"}, "what was UP all the time has no lane"
    assert set(timelines["h1/eth0"]) == {2}, "a state that began before the range"
    assert timelines["leaf1:swp3<>spine1:swp1"][0] == timelines["leaf1:swp3<>spine1:swp1"][-1] == 1
    assert max(timelines["leaf1:swp3<>spine1:swp1"]) == 4
    assert asked(queries.FLAP_COUNT).result_rows == [(1,)], "told in two rows, and once"
    assert asked(queries.CONTENTION_COUNT).result_rows == asked(queries.ALERT_COUNT).result_rows == [(1,)]
    assert len(asked(queries.CONTENTION_TABLE).result_rows) == 2, "the old one is out of range"
    assert len(asked(queries.ALERT_TABLE).result_rows) == 2
    assert {row[1:] for row in asked(queries.QUEUE_SPREAD).result_rows} >= {("131072", 10), ("64", 10)}
    [(job, *_, rate, _retransmits, _rtt, route)] = asked(queries.FLOW_TABLE).result_rows
    assert (job, rate, route) == ("llm", 8e6, "leaf1:swp3>spine1:swp1")


def test_figures_of_decisions_and_actions_are_right(asked):
    assert asked(queries.DECISION_COUNT).result_rows == [(1,)]
    assert asked(queries.DONE_SHARE).result_rows == [(1.0,)]
    assert asked(queries.TAKEN_P99).result_rows == [(12e6,)]
    assert {row[1:] for row in asked(queries.DECISION_SERIES).result_rows} == {("DOWN", 1)}
    assert {row[1:] for row in asked(queries.OUTCOME_SERIES).result_rows} == {("APPLIED", 1)}
    table = asked(queries.DECISION_TABLE)
    [row] = table.result_rows
    figures = dict(zip(table.column_names, row, strict=True))
    assert (figures["flow"], figures["outcomes"], figures["done_by"], figures["effector_ns"]) == (
        "h1/b/sock:1",
        "APPLIED",
        "SOCKET",
        1000,
    )


@pytest.mark.parametrize(
    ("sql", "expanded"),
    [
        ("$__timeFilter(t)", "t >= toDateTime(100) AND t <= toDateTime(160)"),
        (
            "$__timeFilter_ms(a.t)",
            "a.t >= fromUnixTimestamp64Milli(100500) AND a.t <= fromUnixTimestamp64Milli(160250)",
        ),
        ("$__timeInterval(t)", "toStartOfInterval(toDateTime(t), INTERVAL 1 second)"),
        ("$__timeInterval_ms(t)", "toStartOfInterval(toDateTime64(t, 3), INTERVAL 250 millisecond)"),
        ("$__fromTime $__toTime", "toDateTime(100) toDateTime(160)"),
        (
            "$__fromTime_ms, $__toTime_ms",
            "fromUnixTimestamp64Milli(100500), fromUnixTimestamp64Milli(160250)",
        ),
        ("$__interval_s", "1"),
        ("${nic:singlequote}", "'a','it''s'"),
    ],
)
def test_macros_expand_as_the_plugin_does(expand_macros, sql, expanded):
    assert expand_macros(sql, 100.5, 160.25, 0.25, nic=["a", "it's"]) == expanded


@pytest.mark.parametrize(
    "sql",
    [
        "$__timeGroup(t, 1m)",
        "$__unknown(t)",
        "$__timeFilter",
        "$__interval_s(t)",
        "$nic",
        "${nic}",
        "${no:csv}",
    ],
)
def test_an_unknown_macro_or_variable_fails(expand_macros, sql):
    with pytest.raises(expand_macros.unknown):
        expand_macros(sql, 0, 1, nic=["a"])
