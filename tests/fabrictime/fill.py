"""Fills a `FabricState` with records, encoded and decoded as on the log."""

from __future__ import annotations

from typing import Any

from fabrictime.state.fabric_state import FabricState
from fabrictime.state.job_state import HEAD_END
from schemas import codec, topics

NS_PER_S = 1_000_000_000


def decode_flows(value: bytes) -> Any:
    return codec.decode(value, "FlowReports")


def fill(state: FabricState, *given: tuple[str, str, dict[str, Any] | None], at_ns: int = NS_PER_S) -> None:
    """Apply (topic, key, record) to a state as the consumer does."""
    for topic, key, record in given:
        name = topics.TOPICS[topic].record
        value = None if record is None else codec.encode(name, record)
        if topic == topics.FLOWS.name:
            state.take_flows(key, value, at_ns)
        elif topic == topics.DIAGNOSES.name and value is not None:
            state.take_diagnosis(codec.decode_head(value, name, HEAD_END), value, at_ns)
        else:
            state.take(topic, key, None if value is None else codec.decode(value, name), at_ns)


def fill_health(state: FabricState, fabric: Any, link: str, name: str, **fields: Any) -> None:
    """Apply a LinkHealth record of a link."""
    fill(state, (topics.LINK_HEALTH.name, fabric.cable(link), fabric.health(link, name, **fields)))


def number_of(state: FabricState, link: str) -> int:
    """Return the number of a known link."""
    number = state.cable_graph.existing_number(link)
    assert number is not None
    return number
