"""Alerts: each cause once, raised and cleared; the same records give the same alerts, however
cut.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.streams.alerts.script import (
    T0,
    Input,
    S,
    Script,
    access,
    book,
    cable,
    ingest,
    play,
)

SUBJECTS = [cable(1, 1), cable(1, 2), cable(2, 2), cable(3, 2), cable(4, 2), access(1)]


@st.composite
def scripts(draw: st.DrawFn) -> list[Input]:
    script, state = Script(), dict.fromkeys(SUBJECTS, "UP")
    opened: dict[str, float] = {}
    host = "UP"
    for _ in range(draw(st.integers(5, 30))):
        script.wait(draw(st.sampled_from([0.03, 0.1, 0.4, 3.0, 8.0, 40.0, 200.0])))
        subject = draw(st.sampled_from([*SUBJECTS, "queue", "host", "clocks"]))
        if subject == "queue":
            link = draw(st.sampled_from(["leaf1:swp3>spine1:swp1", "leaf3:swp3>spine1:swp3"]))
            if link in opened and draw(st.booleans()):
                script.queue(link, "CLOSED", opened.pop(link))
            elif link in opened:
                script.queue(link, "UPDATED", opened[link])
            else:
                opened[link] = (script.now_ns - T0) / S
                script.queue(link, "OPENED", opened[link])
        elif subject == "host":
            host = "UP" if host == "DOWN" else "DOWN"
            script.health("h1", host, kind="HOST")
        elif subject == "clocks":
            script.clocks(draw(st.sampled_from([["SYNCED"] * 4, ["UNSYNCED"] * 4])))
        else:
            other = draw(st.sampled_from([s for s in ("UP", "DOWN", "GREY") if s != state[subject]]))
            state[subject] = other
            often = len(script.flap_ns.get(subject, [])) > 8 and other == "UP"
            script.health(subject, "FLAPPING" if often else other, loss=0.03 if other == "GREY" else 0.0)
    return script.inputs


@settings(max_examples=examples(120))
@given(inputs=scripts(), data=st.data())
def test_records_read_again_from_any_cut_give_the_same_alerts(
    inputs: list[Input], data: st.DataObject
) -> None:
    whole = play(inputs)
    by_id: dict[str, list[Any]] = {}
    for record in whole:
        by_id.setdefault(record["alert_id"], []).append(record)
    for of_id in by_id.values():
        states = [r["state"] for r in of_id]
        assert [r["update"] for r in of_id] == list(range(len(of_id)))
        assert states == ["RAISED"] * (len(states) - 1) + [states[-1]]
    cut = data.draw(st.integers(1, len(inputs)))
    first = book()
    published = [r for one in inputs[:cut] for _, r in ingest(first, *one)]
    second = book()
    second.recover(published)
    horizon_ns = inputs[cut - 1][3] - 3600 * S
    again = [one for one in inputs if one[3] >= horizon_ns]
    published += play(again, second)
    merged = {(r["alert_id"], r["update"]): r for r in published}
    assert merged == {(r["alert_id"], r["update"]): r for r in whole}


@pytest.mark.parametrize("name", ["alert_gather_ms", "alert_clear_s"])
def test_the_waits_are_thresholds(name: str) -> None:
    script = Script().health(cable(1, 2), "DOWN").wait(1).health(cable(1, 2), "UP").wait(1)
    records = play(script.health(cable(3, 3), "UP").inputs, book(**{name: 0}), rest_s=0)
    states = [r["state"] for r in records]
    assert states == (["RAISED"] if name == "alert_gather_ms" else ["RAISED", "CLEARED"])
