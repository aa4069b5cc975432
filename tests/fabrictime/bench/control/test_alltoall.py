"""Flows that were steered back, as the all-to-all bench counts oscillations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fabrictime.bench.control.alltoall import _steered_back


def decision(
    seq: int, from_path: int, to_path: int, kind: str = "COLLISION", **fields: Any
) -> dict[str, Any]:
    return {
        "flow_id": "f",
        "epoch": 1,
        "seq": seq,
        "from_path": from_path,
        "to_path": to_path,
        "reason": {"kind": kind},
        **fields,
    }


def steered_back(*decisions: dict[str, Any]) -> list[str]:
    return _steered_back(SimpleNamespace(decisions=dict(enumerate(decisions))))  # type: ignore[arg-type]


def test_a_return_to_links_that_were_left_is_an_oscillation_in_whatever_order_it_is_read() -> None:
    there, back = decision(1, 5, 6), decision(2, 6, 5)
    assert steered_back(there, back) == steered_back(back, there) == ["f"]


def test_moves_onwards_of_other_flows_and_for_other_reasons_are_none() -> None:
    assert steered_back() == []
    assert steered_back(decision(1, 5, 6), decision(2, 6, 7)) == []
    assert steered_back(decision(1, 5, 6), decision(2, 6, 5, "HEALED")) == []
    assert steered_back(decision(1, 5, 6), decision(2, 6, 5, flow_id="g")) == []
