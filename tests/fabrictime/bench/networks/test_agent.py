"""The size of an agent: the packages that it needs, without those of extras."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure, Missing
from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.networks import agent


def test_packages_of_the_agent_are_those_without_extras() -> None:
    found = agent.needed(agent._requirements())
    assert {"numpy", "confluent-kafka", "pydantic-core", "rich", "typing-extensions"} <= found
    assert not found & {"chdb", "nicegui", "faust-streaming", "aiokafka", "pytest", "attrs"}


def test_requirements_of_extras_and_other_platforms_are_left_out() -> None:
    assert agent.needed(["rich>=14; extra == 'web'", "winreg-of-windows; os_name == 'nt'"]) == set()
    assert "typing-extensions" in agent.needed(["Typing_Extensions[x]>=4; python_version > '3'"])


def test_caches_do_not_count() -> None:
    assert 100_000 < agent.install_bytes("typing-extensions") < 300_000


def test_without_a_running_prober_memory_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> float:
        raise CannotRun("no prober is running")

    monkeypatch.setattr(agent, "_rss_mb", refuse)
    monkeypatch.setattr(agent, "_import_s", lambda: (0.5, 0.25))
    figures = agent.measure(lambda line: None, quick=True)
    assert figures["agent_rss_mb"] == Missing("no prober is running")
    assert figures["agent_import_s"] == Figure(0.5, note="interpreter included; 0.25 s of a processor")
    assert isinstance(figures["agent_install_mb"], Figure)
    assert 80 < figures["agent_install_mb"].value < 200
