"""Absurd values enter neither fits nor solve: the stream continues, and no worker ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from native.core import ProbeColumns, batches_of
from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import PROBES
from schemas.validation import validate_offsets
from streams.clock.solver import ShardClocks
from streams.clock.validation import validate_fits
from streams.delays.counters import JumpLimit
from streams.delays.records import clock_fits, fit_window
from streams.delays.source_partition import Source
from streams.runtime.tables import Member
from tests.records import make_part

WINDOW_NS = 1_000_000_000
NOW = 1_795_000_000 * WINDOW_NS
NIC = {
    "nic": "a/0",
    "clock": "a/0",
    "run": 1,
    "batches": 1,
    "samples": 1,
    "lost": 0,
    "lost_batches": 0,
    "restarts": 0,
    "clock_jump_ns": 0,
    "clock_ns": NOW,
    "system_ns": NOW,
    "append_ns": NOW,
    "last_batch": 1,
}
PAIR = make_part(
    "ClockFits",
    "PairFit",
    prober="a/0",
    peer="b/0",
    at_ns=NOW,
    offset_ns=5,
    drift_ppb=1.0,
    sigma_ns=10.0,
    drift_sigma_ppb=10.0,
    rtt_min_ns=9000.0,
    samples=9,
    accepted=9,
)


def fits(window: int = NOW // WINDOW_NS, **changed: Any) -> dict[str, Any]:
    return {
        "shard": "s",
        "source": "fabric.probes/0",
        "window": window,
        "window_start_ns": window * WINDOW_NS,
        "window_end_ns": (window + 1) * WINDOW_NS,
        "part": 0,
        "parts": 1,
        "first_offset": 0,
        "next_offset": 1,
        "lag_messages": 0,
        "messages": 1,
        "bytes": 1,
        "samples": 1,
        "late": 0,
        "rejected": 0,
        "nics": [NIC],
        "pairs": [PAIR],
        **changed,
    }


def test_a_valid_record_is_unchanged() -> None:
    record = fits()
    assert validate_fits(record, NOW + 2 * WINDOW_NS, WINDOW_NS) == (record, 0)


@pytest.mark.parametrize("ahead", [61, 10**9, 2**62 // WINDOW_NS])
def test_a_future_window_is_refused(ahead: int) -> None:
    with pytest.raises(codec.BadRecord, match="window") as found:
        validate_fits(fits(NOW // WINDOW_NS + ahead), NOW, WINDOW_NS)
    assert found.value.reason == "OUT_OF_RANGE"


def test_another_window_length_is_refused() -> None:
    with pytest.raises(codec.BadRecord, match="window_start_ns"):
        validate_fits(fits(window_start_ns=NOW // 2), NOW, WINDOW_NS)


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(codec.BadRecord, match="first_offset"):
        validate_fits(fits(first_offset=2**63 - 1), NOW, WINDOW_NS)


ABSURD = [
    {"nics": [NIC, {**NIC, "nic": "x/0", "clock": "x/0", "clock_ns": 2**63 - 1}]},
    {"nics": [NIC, {**NIC, "nic": "x/0", "clock": "x/0", "system_ns": -(2**63)}]},
    {"nics": [NIC, {**NIC, "nic": "x/0", "clock": "x/0", "append_ns": -(2**63)}]},
    {"nics": [NIC, {**NIC, "nic": "x/0", "clock": "x/0", "append_ns": NOW - 3_600 * WINDOW_NS}]},
    *(
        {"pairs": [PAIR, {**PAIR, "peer": "x/0", name: value}]}
        for name, value in (
            ("at_ns", -(2**63)),
            ("offset_ns", -(2**63)),
            ("offset_fraction_ns", 1e300),
            ("drift_ppb", -1e300),
            ("sigma_ns", 1e300),
            ("drift_sigma_ppb", 1e300),
            ("rtt_min_ns", 1e300),
        )
    ),
]


@pytest.mark.parametrize("changed", ABSURD)
def test_an_absurd_element_is_left_out_and_the_rest_is_solved(changed: dict[str, Any]) -> None:
    record, left_out = validate_fits(fits(**changed), NOW + 2 * WINDOW_NS, WINDOW_NS)
    assert left_out == 1
    clocks = ShardClocks("s")
    for each in clocks.solve(record["window"], WINDOW_NS, [record], {}):
        codec.encode("ClockOffsets", each)
        assert "x/0" not in {clock["clock"] for clock in each["clocks"]}


@pytest.mark.parametrize("name", ["at_ns", "offset_ns", "drift_ppb", "bound_ns", "log_offset_ns"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_extreme_accepted_state_can_be_recovered(name: str, sign: int) -> None:
    far = {"at_ns": 2**62, "offset_ns": 2**62, "drift_ppb": 1e9, "bound_ns": 1e18, "log_offset_ns": 2**62}
    value = far[name] * (1 if name == "bound_ns" else sign)
    window = NOW // WINDOW_NS
    log_offset_ns = int(value) if name == "log_offset_ns" else 0
    clock = {
        "clock": "a/0",
        "at_ns": NOW,
        "offset_ns": 0,
        "offset_fraction_ns": 0.0,
        "knot_offset_fraction_ns": 0.0,
        "drift_ppb": 0.0,
        "bound_ns": 1.0,
        "state": "SYNCED",
        "pairs": 1,
        "residual_ns": 0.0,
        name: value,
    }
    record = {
        "shard": "s",
        "window": window - 1,
        "part": 0,
        "parts": 1,
        "domain": "a/0",
        "clocks": [clock],
        "window_start_ns": NOW - WINDOW_NS + log_offset_ns,
        "window_end_ns": NOW + log_offset_ns,
        "log_offset_ns": log_offset_ns,
    }
    clocks = ShardClocks("s")
    read, left_out = validate_offsets(record, NOW, WINDOW_NS)
    assert left_out == 0
    clocks.recover([read])
    for each in clocks.solve(window, WINDOW_NS, [fits()], {}):
        codec.encode("ClockOffsets", {**each, "solved_ns": 0})


def batch_of(number: int, at_ns: int) -> ProbeColumns:
    none = np.zeros(1, np.int32)
    even = np.full(10, 5_000, np.int64)
    return ProbeColumns(
        nic="a/0",
        run=1,
        batch=number,
        clock_ns=at_ns,
        system_ns=at_ns,
        peers=["b/0"],
        path=none,
        spacing_ns=none,
        lost=none,
        no_t3=none,
        start=np.array([0, 10]),
        sent=at_ns + 1_000_000 * np.arange(10),
        forward=even,
        turnaround=even,
        reverse=even,
    )


MEMBERS = {"a/0": Member("a/0", "a", "s", "a/0")}
LIMIT = JumpLimit(1e5, 1e3)


@pytest.mark.parametrize(
    "changed", [{"clock_ns": 2**62}, {"clock_ns": -(2**62), "system_ns": 2**62}, {"batch": 2**63 - 1}]
)
def test_the_extreme_decoded_readings_can_be_solved(
    changed: dict[str, int],
) -> None:
    source = Source("fabric.probes/0", WINDOW_NS, 150_000_000)
    clocks = ShardClocks("s")
    solved = 0
    for number in range(40):
        at_ns = NOW + number * 200_000_000
        batch = batch_of(number, at_ns)
        for name, value in changed.items() if number % 7 == 6 else ():
            setattr(batch, name, value)
        for window in source.add_messages(
            [Message(at_ns, PROBES.name, 0, number, None, b"-")], batches_of([batch])
        ):
            for record in clock_fits(fit_window(window), MEMBERS, ["s"], WINDOW_NS, LIMIT):
                read = codec.decode(codec.encode("ClockFits", record), "ClockFits")
                entering = [validate_fits(read, at_ns, WINDOW_NS)[0]]
                for each in clocks.solve(window.cut.window, WINDOW_NS, entering, {}):
                    codec.encode("ClockOffsets", each)
                    solved += 1
    assert solved > 5
