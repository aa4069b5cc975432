"""Commands of the actuator: any line is a command, a refusal or an error that is answered."""

import select

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime_client.control import Command, ControlConnection


class Lines(ControlConnection):
    """A connection whose lines come from the test."""

    def __init__(self, *lines):
        super().__init__("", select.epoll())
        self.given, self.sent = list(lines), []
        self._epoll.close()

    def exchange(self):
        return self.given

    def send(self, line):
        self.sent.append(line)


def test_commands_name_flow_value_and_host():
    found = Lines("MOVE 7 sock:1 50002", "PACE 8 qp:mlx5_0:3:9 0 h2").commands()
    assert found == [
        Command("MOVE", 7, "sock:1", 50_002, None),
        Command("PACE", 8, "qp:mlx5_0:3:9", 0, "h2"),
    ]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("MOVE 7 sock:1 0", "FAILED 7 source port 0: expected 1 to 65535"),
        ("MOVE 7 sock:1 65536", "FAILED 7 source port 65536: expected 1 to 65535"),
        ("HELLO", "ERROR expected MOVE or PACE, id, key and value, not HELLO"),
        ("MOVE x sock:1 1", "ERROR expected MOVE or PACE, id, key and value, not MOVE x sock:1 1"),
        (
            "PACE 1 sock:1 " + "9" * 20,
            "ERROR expected MOVE or PACE, id, key and value, not PACE 1 sock:1 " + "9" * 20,
        ),
    ],
)
def test_an_impossible_line_is_answered(line, answer):
    control = Lines(line)
    assert control.commands() == []
    assert control.sent == [answer]


@given(st.lists(st.text(st.sampled_from("MOVEPACR 019:h\u0661"), max_size=30), max_size=4))
def test_every_line_is_a_command_or_answered_and_errors_are_kept(lines):
    control = Lines(*lines)
    found = control.commands()
    errors = [line for line in lines if line.split(" ")[0] == "ERROR"]
    assert len(found) + len(control.sent) + len(errors) == len(lines)
    assert all(command.value >= 0 for command in found)


def test_answers_are_one_line_of_bounded_length():
    control = Lines()
    control.done(7, 50_002, "SOCKET")
    control.failed(8, "no\n such  socket" + "x" * 9999)
    assert control.sent[0] == "DONE 7 50002 SOCKET"
    assert control.sent[1].startswith("FAILED 8 no such socketx")
    assert len(control.sent[1]) < 500
