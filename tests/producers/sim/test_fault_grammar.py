"""Fault lines of the simulated fleet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.sim.fault_grammar import GRAMMAR, FaultSpec, parse_duration, parse_fault


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("down leaf1>spine2", FaultSpec(kind="down", target="leaf1>spine2")),
        ("grey 2.5% h1/eth1 for 10s", FaultSpec(kind="grey", target="h1/eth1", share=0.025, for_s=10)),
        ("flap 3 leaf1 every 500ms", FaultSpec(kind="flap", target="leaf1", times=3, every_s=0.5)),
        ("flap 3 times leaf1", FaultSpec(kind="flap", target="leaf1", times=3)),
        (
            "incast 8 h1/eth1 after 2m for 1h",
            FaultSpec(kind="incast", target="h1/eth1", times=8, after_s=120, for_s=3600),
        ),
        ("pause-storm h1/eth1 seed 7", FaultSpec(kind="pause-storm", target="h1/eth1", seed=7)),
        ("straggler 20ms train:3", FaultSpec(kind="straggler", target="train:3", delay_s=0.02)),
        ("wrong-class 250us train", FaultSpec(kind="wrong-class", target="train", delay_s=250e-6)),
        ("paced 20% train for 3s", FaultSpec(kind="paced", target="train", share=0.2, for_s=3)),
        ("hang train:0 after 1s", FaultSpec(kind="hang", target="train:0", after_s=1)),
    ],
)
def test_a_fault_line_is_read_and_written(text: str, spec: FaultSpec) -> None:
    assert parse_fault(text) == spec
    assert parse_fault(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "expected `down"),
        ("down", "expected `down"),
        ("melt leaf1", "expected `down"),
        ("grey 0% leaf1", "above 0% and below 100%"),
        ("grey 100% leaf1", "above 0% and below 100%"),
        ("flap 0 leaf1", "expected `down"),
        ("flap 3 leaf1 for 5s", "expected no `for`"),
        ("down leaf1 every 5s", "only for a flap"),
        ("down leaf1 for 8000000s", "at most 7 days"),
    ],
)
def test_a_wrong_fault_line_is_refused_with_the_expected_form(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_fault(text)


@given(st.text(alphabet="downgreyflapincast 0123456789%.>sm", max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        spec = parse_fault(text)
    except ValueError:
        return
    assert spec.kind in GRAMMAR
    assert 0 < spec.share <= 1
    assert spec.target in text


def test_durations_have_a_unit() -> None:
    assert [parse_duration(text) for text in ("5us", "1.5ms", "2s", "3m", "1h")] == pytest.approx(
        [
            5e-6,
            1.5e-3,
            2,
            180,
            3600,
        ]
    )
    for text in ("5", "0s", "-1s", "s", "1d"):
        with pytest.raises(ValueError, match="duration"):
            parse_duration(text)


@pytest.mark.parametrize(
    "line",
    [
        "down leaf1>spine2",
        "blackhole h1",
        "grey 20% leaf1<>spine2 seed 7 for 10s",
        "flap 9 leaf1>spine2 every 0.4s after 5s",
        "dead h3",
        "incast 16 h1/eth1 for 2s",
        "slow-receiver 30% h1/eth1",
        "slow-sender 5% h1/eth1 after 1s for 2s",
        "pause-storm h2/eth1",
    ],
)
def test_a_fault_prints_as_its_line(line):
    assert str(parse_fault(line)) == line
    assert parse_fault(str(parse_fault(line))) == parse_fault(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "down",
        "grey leaf1>spine2",
        "grey 0% h1",
        "grey 100% h1",
        "flap 0 h1",
        "flap h1",
        "incast h1/eth1",
        "down h1 for ever",
        "down h1 every 2s",
        "flap 3 h1 for 2s",
        "explode h1",
        "grey 20% h1 now",
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_in_one_line(line):
    with pytest.raises(ValueError) as caught:
        parse_fault(line)
    assert "\n" not in str(caught.value)


def test_flap_accepts_times():
    assert parse_fault("flap 9 times leaf1>spine2") == parse_fault("flap 9 leaf1>spine2")
