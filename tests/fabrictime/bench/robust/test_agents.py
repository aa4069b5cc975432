"""Stopped agents and dead hosts: the verdicts that confuse them, and the trials."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure
from fabrictime.bench.robust.agents import (
    Trial,
    Verdicts,
    _figures,
    _simulate,
    _trials,
    called_agent_down,
    called_host_down,
    outages_s,
)


@pytest.mark.parametrize("subject", ["h3", "h3/eth1", "h3:eth1<>leaf2:swp1"])
def test_a_host_is_called_down_by_itself_its_nics_and_its_cables(subject: str) -> None:
    assert called_host_down("h3", Verdicts(down={subject}))
    assert not called_host_down("h4", Verdicts(down={subject, "leaf2:swp5<>spine1:swp2"}))


def test_an_alert_about_the_prober_is_about_its_host() -> None:
    assert called_agent_down("h3", Verdicts(silent_agents={"h3"}))
    assert not called_agent_down("h4", Verdicts(silent_agents={"h3"}))


def test_outages_reach_from_one_to_thirty_seconds() -> None:
    found = outages_s(5)
    assert found[0] == pytest.approx(1)
    assert found[-1] == pytest.approx(30)
    assert found == sorted(found)


def test_hosts_that_are_cut_off_have_no_stopped_agents() -> None:
    trials = _trials(20, 7)
    assert trials == _trials(20, 7)
    assert sum(trial.is_cut for trial in trials) == 7
    assert not {t.nic for t in trials if t.is_cut} & {t.nic for t in trials if not t.is_cut}


def test_simulation_confuses_neither() -> None:
    stop, cut = Trial(2, 5.0), Trial(6, 5.0, is_cut=True)
    simulated = [_simulate(stop), _simulate(cut)]
    figures = _figures([], simulated, "")
    stopped, dead = figures["agent_stop_called_host_down"], figures["dead_host_called_agent_down"]
    assert stopped == Figure(
        0.0, note="0 on the fabric of packets, 1 in simulation; 1 named by an alert AGENT"
    )
    assert dead == Figure(0.0, note="0 on the fabric of packets, 1 in simulation; 0 not called DOWN")


def test_confused_trials_are_counted_and_named() -> None:
    live = [(Trial(0, 2.0), Verdicts(down={"h1"})), (Trial(7, 8.0, is_cut=True), Verdicts({"h8"}, {"h8"}))]
    figures = _figures(live, [], "")
    for key, host in (
        ("agent_stop_called_host_down", "h1 2.0 s"),
        ("dead_host_called_agent_down", "h8 8.0 s"),
    ):
        figure = figures[key]
        assert isinstance(figure, Figure)
        assert figure.value == 1
        assert host in (figure.note or "")
