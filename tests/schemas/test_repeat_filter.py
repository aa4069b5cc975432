"""Lines that repeat are logged once in a while, with their number."""

from schemas.repeat_filter import MAX_LINES, REPEAT_S, RepeatFilter


def test_a_line_is_due_once_and_later_with_its_repetitions():
    now_s = [0.0]
    lines = RepeatFilter(lambda: now_s[0])
    assert lines.due("down") == "down"
    assert [lines.due("down") for _ in range(200)] == [None] * 200
    assert lines.due("other") == "other"
    now_s[0] = REPEAT_S + 0.1
    assert lines.due("down") == "down (200 more since the last such line)"
    assert lines.due("down") is None


def test_the_memory_is_bounded():
    lines = RepeatFilter(lambda: 0.0)
    for number in range(10 * MAX_LINES):
        assert lines.due(str(number)) is not None
    assert len(lines._lines) <= MAX_LINES + 1
