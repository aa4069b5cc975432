"""Endpoint protocol: lines between the actuator and flow endpoints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.effectors import endpoint_protocol
from actuators.effectors.endpoint_protocol import (
    LINE_BYTES,
    RATE_MAX_BPS,
    Done,
    Failed,
    Flow,
    Gone,
    Time,
    command,
    parse,
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"FLOW sock:7 50000 MOVE,PACE", Flow("sock:7", 50000, frozenset({"MOVE", "PACE"}), None)),
        (b"FLOW qp:mlx5_0:17:3 1 - h1\r", Flow("qp:mlx5_0:17:3", 1, frozenset(), "h1")),
        (b"GONE sock:7 h1", Gone("sock:7", "h1")),
        (b"DONE 3 50001 UDP_SPORT", Done(3, 50001, "UDP_SPORT")),
        (b"FAILED 3 no such flow", Failed(3, "no such flow")),
        (b"FAILED 3", Failed(3, "its endpoint could not")),
        (b"TIME 1795884772580000000", Time(1795884772580000000)),
    ],
)
def test_a_line_is_parsed(line: bytes, message: object) -> None:
    assert parse(line) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"FLOW sock:7 0 MOVE",
        b"FLOW sock:7 65536 MOVE",
        b"FLOW sock:7 1 STEAL",
        b"FLOW sock:x 1 MOVE",
        b"FLOW sock:7 1 MOVE h1/eth0",
        b"DONE 3 5 MAGIC",
        b"DONE 3 %d PACING" % (RATE_MAX_BPS + 1),
        b"DONE -3 5 PACING",
        b"FAILED",
        b"TIME",
        b"TIME -1",
        b"TIME %d" % 2**63,
        b"FLOW sock:7 1 MOVE \xff",
        b"FAILED 1 \x1b[31m",
        b"FAILED 1 " + b"x" * LINE_BYTES,
    ],
)
def test_a_wrong_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|ASCII"):
        parse(line)


@given(st.binary(max_size=LINE_BYTES + 10))
def test_any_bytes_are_parsed_or_refused(line: bytes) -> None:
    try:
        parse(line)
    except ValueError as error:
        text = str(error)
    else:
        return
    assert len(text) < 400, "an error text quotes a part of the line only"


def test_a_command_is_one_line_of_ascii() -> None:
    assert command("PACE", 4, "sock:7", 10**9, "h1") == b"PACE 4 sock:7 1000000000 h1\n"


@given(st.lists(st.binary(max_size=60), max_size=20), st.randoms(use_true_random=False))
def test_any_bytes_are_valid_lines_or_refused(pieces, draw):
    statuses_received = [
        b"FLOW",
        b"GONE",
        b"DONE",
        b"FAILED",
        b"sock:7",
        b"1",
        b"65536",
        b"-1",
        b"MOVE,PACE",
        b"h1",
        b"\xff",
    ]
    for piece in [*pieces, b" ".join(draw.choices(statuses_received, k=draw.randrange(6)))]:
        try:
            parsed = endpoint_protocol.parse(piece)
        except ValueError:
            continue
        assert isinstance(
            parsed,
            endpoint_protocol.Flow
            | endpoint_protocol.Gone
            | endpoint_protocol.Done
            | endpoint_protocol.Failed
            | endpoint_protocol.Time,
        )
