"""The live configuration: the thresholds and the table of `fabric.config`."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import codec
from streams.runtime.live_config import LiveConfig
from streams.runtime.thresholds import THRESHOLDS, Thresholds, check_value


def config(host: str, version: int = 1, rules: list[Any] | None = None, **thresholds: float) -> bytes:
    return codec.encode(
        "ActuatorConfig",
        {
            "host": host,
            "version": version,
            "at_ns": 0,
            "by": "test",
            "mode": "UNKNOWN",
            "thresholds": [{"name": name, "value": value} for name, value in thresholds.items()],
            "latency_rules": rules or [],
        },
    )


def rule(name: str, p99_us: float) -> dict[str, Any]:
    return {"name": name, "from_group": "*", "to_group": "rack:r1", "p99_us": p99_us, "for_s": 10.0}


def test_every_default_is_within_its_limits_and_has_a_meaning() -> None:
    for name, each in THRESHOLDS.items():
        assert each.min_value <= each.default <= each.max_value
        assert each.doc
        assert check_value(name, each.default) == each.default


@pytest.mark.parametrize(("name", "value"), [("flaps_max", 0), ("flaps_max", float("nan")), ("flaps", 3)])
def test_an_unknown_threshold_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        check_value(name, value)


def test_a_hosts_own_values_override_those_of_all_hosts() -> None:
    view = LiveConfig()
    view.take(b"*", config("*", flaps_max=3, up_delay_ms=500))
    view.take(b"h1", config("h1", flaps_max=5))
    assert (view.thresholds()["flaps_max"], view.thresholds("h1")["flaps_max"]) == (3, 5)
    assert view.thresholds("h1").ns("up_delay_ms") == 500_000_000
    assert view.thresholds("h2")["flaps_max"] == 3
    view.take(b"*", None)
    assert view.thresholds()["flaps_max"] == THRESHOLDS["flaps_max"].default
    assert view.thresholds("h1")["flaps_max"] == 5


def test_an_invalid_value_is_ignored_and_the_others_count() -> None:
    view = LiveConfig()
    view.take(b"*", config("*", flaps_max=-1, nonsense=1, up_delay_ms=0))
    assert dict(view.thresholds()) == dict(Thresholds({"up_delay_ms": 0}))


def test_a_record_under_another_key_is_refused() -> None:
    with pytest.raises(codec.BadRecord, match="h1"):
        LiveConfig().take(b"*", config("h1"))


def test_latency_rules_are_all_hosts_together_by_name() -> None:
    view = LiveConfig()
    view.take(b"h1", config("h1", rules=[rule("b", 20)]))
    view.take(b"*", config("*", rules=[rule("b", 10), rule("a", 5)]))
    assert [(r["name"], r["p99_us"]) for r in view.latency_rules()] == [("a", 5), ("b", 20)]
