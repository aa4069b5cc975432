"""Notes and their successors; times of the command line."""

import pytest

from fabrictime.commands.alert.notes import changed_note, ended_note, new_note, time_ns
from schemas.input_error import InputError

S = 1_000_000_000


def test_a_silence_in_force_keeps_its_start_and_a_new_one_begins_now():
    note = changed_note(new_note("h1", 0), 10 * S, silence=(10 * S, 20 * S))
    longer = changed_note(note, 15 * S, silence=(15 * S, 60 * S))
    assert (longer["silent_from_ns"], longer["silent_until_ns"]) == (10 * S, 60 * S)
    later = changed_note(note, 30 * S, silence=(30 * S, 60 * S))
    assert later["silent_from_ns"] == 30 * S


def test_a_planned_window_can_be_ended_before_it_begins():
    note = changed_note(new_note("h1", 0), 10 * S, silence=(100 * S, 200 * S))
    ended = ended_note(note, 20 * S)
    assert (ended["silent_from_ns"], ended["silent_until_ns"]) == (20 * S, 20 * S)


def test_comments_are_bounded_and_one_line():
    note = new_note("h1", 0)
    for number in range(40):
        note = changed_note(note, number, comment=f"comment {number}")
    assert [len(note["comments"]), note["comments"][-1]["text"]] == [32, "comment 39"]
    with pytest.raises(InputError, match="AlertNote"):
        changed_note(note, 50, comment="two\nlines")
    with pytest.raises(InputError, match="does not fit its schema"):
        changed_note(note, 50, silence=(50, 2**63))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("+30m", 1800 * S), ("1970-01-01T00:01", 60 * S), ("1970-01-01T01:00+01:00", 0)],
)
def test_times(text, expected):
    assert time_ns(text, 0) == expected


def test_a_time_of_another_form_is_refused():
    with pytest.raises(InputError, match="expected a time such as"):
        time_ns("tomorrow", 0)
