"""The alerts that a note concerns."""

import pytest

from actuators.notify.notes import NoteIndex, state_text
from tests.actuators.notify.alerts import T0, S, alert, note


def index_of(*notes):
    index = NoteIndex()
    for host, rack in (("h1", "r1"), ("h2", "r1"), ("h3", "r2"), ("h4", None)):
        index.take_rack(host, rack)
    for one in notes:
        index.take(one["subject"], one)
    return index


@pytest.mark.parametrize(
    ("scope", "pattern", "fields", "is_selected"),
    [
        ("HOST", "h1", {"subject": "h1"}, True),
        ("HOST", "h*", {"subject": "train", "nics": ["h1/eth0", "h2/eth0"]}, True),
        ("HOST", "h1", {"subject": "train", "nics": ["h1/eth0", "h2/eth0"]}, False),
        ("HOST", "h1", {"subject": "h1:eth0<>leaf1:p1"}, True),
        ("HOST", "*", {"subject": "leaf1:p1<>spine1:p1"}, False),
        ("RACK", "r1", {"subject": "h1/eth0", "grouped": ["h2/eth0"]}, True),
        ("RACK", "r1", {"subject": "h1/eth0", "grouped": ["h3/eth0"]}, False),
        ("RACK", "r1", {"subject": "h4"}, False),
        ("LINK", "*leaf1:*", {"subject": "leaf1:p1<>spine1:p1"}, True),
        ("LINK", "*leaf1:*", {"subject": "spine1:p1<>leaf1:p1", "links": ["leaf1:p2>spine1:p2"]}, True),
        ("LINK", "*leaf1:*", {"subject": "leaf1:p1<>spine1:p1", "grouped": ["leaf2:p1<>spine1:p2"]}, False),
        ("LINK", "*", {"subject": "h1"}, False),
        ("HOST", "*", {"subject": "latency:rule"}, False),
    ],
)
def test_a_pattern_selects_alerts_that_lie_in_it_entirely(scope, pattern, fields, is_selected):
    index = index_of(note("window", scope=scope, pattern=pattern, owner="ana"))
    assert bool(index.of(alert(**fields))) is is_selected


def test_an_acknowledgement_concerns_alerts_that_were_raised_before():
    index = index_of(note("h1", acknowledged_ns=T0 + S))
    assert index.is_acknowledged(alert("h1", raised_ns=T0))
    assert not index.is_acknowledged(alert("h1", raised_ns=T0 + 2 * S))


def test_the_silence_that_ends_last_counts_and_a_tombstone_ends_all():
    index = index_of(
        note("h1", silent_from_ns=T0, silent_until_ns=T0 + 10 * S),
        note("host:h*", scope="HOST", pattern="h*", silent_from_ns=T0 + 5 * S, silent_until_ns=T0 + 60 * S),
    )
    one = alert("h1")
    assert index.silence_at(one, T0 - 1) is None
    assert index.silence_at(one, T0 + 2 * S).until_ns == T0 + 10 * S
    assert index.silence_at(one, T0 + 6 * S).until_ns == T0 + 60 * S
    assert state_text(index, one, T0 + 6 * S) == "maintenance"
    index.take("host:h*", None)
    index.take("h1", None)
    assert index.silences(one) == []
    assert state_text(index, one, T0) == ""
