"""Probers that do not answer while their host does, by whole seconds."""

from __future__ import annotations

from typing import Any

from streams.alerts.silent_agents import SilentAgents


def event(nic: str, **answers: int) -> Any:
    hosts = [{"peer": f"{host}/eth1", "answers": count} for host, count in answers.items()]
    return {"nic": nic, "hosts": hosts}


def watched(
    seconds: int, *, stopped_s: int, dead_s: int | None = None, until_s: int = 1000
) -> list[set[str]]:
    """The silent probers of each second; h3 stops at `stopped_s`, its host dies at `dead_s`."""
    agents, found = SilentAgents(), []
    for second in range(seconds):
        if not stopped_s <= second < until_s:
            agents.ingest(event("h3/eth1"), second)
        for nic in ("h1/eth1", "h2/eth1"):
            is_probed = stopped_s <= second < until_s
            alive = dead_s is None or second < dead_s
            agents.ingest(event(nic, h3=int(alive)) if is_probed else event(nic), second)
        found.append(set(agents.at(second)))
    return found


def test_a_stopped_prober_is_silent_from_the_third_second_until_it_reports() -> None:
    found = watched(12, stopped_s=3, until_s=9)
    assert [second for second, nics in enumerate(found) if nics] == [4, 5, 6, 7, 8]


def test_a_dead_host_is_no_silent_prober() -> None:
    assert not any(watched(12, stopped_s=3, dead_s=3))


def test_a_host_that_dies_later_ends_it() -> None:
    found = watched(14, stopped_s=3, dead_s=8)
    assert [second for second, nics in enumerate(found) if nics] == [4, 5, 6, 7, 8, 9]


def test_a_prober_that_reports_is_not_silent_though_a_peer_misses_it() -> None:
    agents = SilentAgents()
    for second in range(10):
        agents.ingest(event("h3/eth1"), second)
        agents.ingest(event("h1/eth1", h3=1), second)
        assert agents.at(second) == {}
