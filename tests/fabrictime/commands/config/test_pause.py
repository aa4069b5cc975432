"""Confirmations of a pause: the newest state of every actuator, in parts and in any order."""

from fabrictime.commands.config import live_config
from fabrictime.commands.config.pause import Heard


def config(host="*", mode="ACT", **fields):
    return {"host": host, "version": 1, "at_ns": 0, "by": "t", "mode": mode, **fields}


def test_actuator_states_in_parts_and_of_ended_actuators():
    def state(at_ns, mode, part=0, parts=1, ending=False, host="h1", version=2, reverting=0):
        row = {
            "host": host,
            "mode": mode,
            "config_version": version,
            "flows": 1,
            "in_force": 0,
            "reverting": reverting,
        }
        return {
            "actuator": "a",
            "run": 1,
            "at_ns": at_ns,
            "part": part,
            "parts": parts,
            "ending": ending,
            "hosts": [row],
        }

    records = {"*": {**live_config.PLAIN, **config(mode="OBSERVE"), "version": 2}}
    heard = Heard()
    heard.take(state(1, "ACT"))
    assert heard.missing(records, False, False) == ["a"]
    heard.take(state(2, "OBSERVE", parts=2))
    heard.take(state(2, "OBSERVE", part=1, parts=2, host="h2", version=1))
    assert heard.missing(records, False, False) == ["a"], "h2 has the older config"
    heard.take(state(3, "OBSERVE", reverting=1))
    assert heard.missing(records, False, False) == []
    assert heard.missing(records, False, True) == ["a"]
    heard.take(state(4, "OBSERVE", ending=True))
    assert heard.missing(records, False, True) == []


def test_an_older_state_that_arrives_late_changes_nothing():
    heard = Heard()
    row = {"host": "h1", "mode": "ACT", "config_version": 1, "flows": 1, "in_force": 0, "reverting": 0}
    newest = {"actuator": "a", "run": 2, "at_ns": 5, "part": 0, "ending": False, "hosts": [row]}
    heard.take(newest)
    heard.take({**newest, "at_ns": 4, "ending": True})
    heard.take({**newest, "run": 1, "hosts": []})
    assert list(heard.hosts["a"]) == ["h1"]


def test_a_thousand_actuators_are_named_in_order_and_none_without_any():
    records = {"*": {**live_config.PLAIN, **config(mode="OBSERVE"), "version": 2}}
    assert Heard().missing(records, False, True) == []
    heard = Heard()
    for number in range(1000):
        row = {"host": f"h{number}", "mode": "OBSERVE", "config_version": 1 + (number % 500 > 0)}
        state = {"actuator": f"a{number}", "run": 1, "at_ns": 1, "part": 0, "ending": False}
        heard.take({**state, "hosts": [{**row, "flows": 0, "in_force": 0, "reverting": 0}]})
    assert heard.missing(records, False, False) == ["a0", "a500"]
    assert len(heard.missing(records, True, False)) == 2
