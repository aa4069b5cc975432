"""The command `fabrictime demo`: refusals in one line, the screen, and signals during the healing."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pytest
from rich.console import Console

from fabrictime.commands import demo
from fabrictime.demo.script import STEPS
from fabrictime.demo.story import Line
from fabrictime.runtime import status


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_real_fleet_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = status.Lock(tmp_path / "data")
    state = {"started_s": 0.0, "fleet": "fleet.toml", "addresses": {}, "children": [{"name": "log"}]}
    status.write(tmp_path / "data", state)
    assert demo.main(None, tmp_path / "data", observe=False, as_json=False) == 1
    lock.release()
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "fabrictime: fleet fleet.toml: the tour breaks links, expected the private testbed, as in "
        "`fabrictime up --fleet fabric`"
    ]
    assert "private testbed" in " ".join(printed.out.split())


def test_with_json_the_story_leaves_standard_output_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("fabrictime.toml").write_text('[up]\nfleet = "none"\n', encoding="utf-8")
    assert demo.main(None, tmp_path / "data", observe=True, as_json=True) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "mode OBSERVE" in " ".join(printed.err.split())


def test_lines_are_plain_where_the_output_is_no_terminal() -> None:
    out = io.StringIO()
    screen = demo.Screen(Console(file=out, width=200))
    screen.heading(1, STEPS[0])
    screen.line(Line(1.5, "detected", "leaf1 <> spine1 is GREY " + "and more " * 10))
    lines = out.getvalue().splitlines()
    assert lines[1] == "1 of 5: grey link. A grey link loses some of its packets."
    assert lines[2].startswith("    +1.50 s  detected  leaf1 <> spine1 is GREY")
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in out.getvalue()


def test_the_first_signal_interrupts_and_a_second_one_does_not_stop_the_healing() -> None:
    former = signal.getsignal(signal.SIGINT)
    healed = []
    with demo._interrupts():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        healed.append(True)
    assert healed
    assert signal.getsignal(signal.SIGINT) is former
