"""Reports of benches as people read them, on wide screens, narrow ones and none."""

from typing import Any

import pytest

from fabrictime.bench import _show

REMARK = "in 600 s; link health told of 2 subjects; [LINK_DOWN] leaf1:swp5<>spine3:swp1"
REPORT: Any = {
    "name": "see",
    "machine": {
        "cpu": "EPYC",
        "cores": 2,
        "memory_gib": 23.5,
        "kernel": "6.18",
        "python": "3.11",
        "load_1min_at_start": 0.1,
    },
    "figures": {
        "false_alarms_10min": {
            "value": 1.0,
            "unit": "alarms",
            "target": "<= 0",
            "met": False,
            "note": REMARK,
        },
        "web_names_fault_s_worst": {
            "value": None,
            "unit": "s",
            "target": "<= 1",
            "met": False,
            "reason": "no browser",
        },
    },
}


@pytest.mark.parametrize("columns", [80, 200, None])
def test_a_figure_its_verdict_and_its_remark_are_always_readable(
    columns: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    _show._print(REPORT)
    shown = capsys.readouterr().out
    text = " ".join(shown.split())
    assert "false_alarms_10min 1 alarms <= 0 no" in text
    assert "web_names_fault_s_worst missing s <= 1 no" in text
    assert REMARK in text
    assert "no browser" in text
    if columns is None:
        assert len(shown.splitlines()) == 4
