"""The live configuration: changes, limits, rules, and the records that stop and resume all action."""

import pytest

from fabrictime.commands.config import live_config
from fabrictime.commands.config.live_config import changed, parse_rule, with_rule
from fabrictime.runtime import user
from schemas import codec
from schemas.input_error import InputError
from schemas.limits import MAX_VERSION, Limits
from schemas.topics import CONFIG

S = 1_000_000_000


def config(host="*", mode="ACT", **fields):
    return {"host": host, "version": 1, "at_ns": 0, "by": "t", "mode": mode, **fields}


def test_a_change_without_effect_or_meaning_is_refused():
    record = changed(None, "*", ["flaps_max=3"])
    with pytest.raises(InputError, match="nothing would change"):
        changed(record, "*", ["flaps_max=3"])
    with pytest.raises(InputError, match="nothing to remove"):
        changed(record, "*", [], ["up_delay_ms"])
    with pytest.raises(InputError, match="expected FROM>TO"):
        parse_rule("r", "rack:r1", 5, 1)
    with pytest.raises(InputError, match="nothing to remove"):
        with_rule(record, "*", "r", None)
    kept = with_rule(record, "*", "r", parse_rule("r", "*>rail:1", 5, 1))
    assert kept["thresholds"] == record["thresholds"]
    assert (kept["version"], len(kept["latency_rules"])) == (2, 1)
    limited = {**kept, "max_actions_per_s": 7, "protected_jobs": ["llm"]}
    further = changed(limited, "*", ["mode=ACT"])
    assert (further["max_actions_per_s"], further["protected_jobs"]) == (7, ["llm"]), (
        "a change keeps the rest"
    )


def test_an_emergency_stop_reaches_hosts_with_their_own_mode_and_saves_it():
    records = {
        "*": config(),
        "h1": config("h1"),
        "h2": config("h2", "OBSERVE"),
        "h3": config("h3", "UNKNOWN"),
    }
    records = {key: {**live_config.PLAIN, **each} for key, each in records.items()}
    found = {each["host"]: each for each in live_config.paused(records, revert=True, now_ns=5)}
    assert {key: each["mode"] for key, each in found.items()} == {"*": "OBSERVE", "h1": "OBSERVE"}
    assert found["*"]["revert_before_ns"] == 5 + S
    records |= found
    assert not Limits.of(records, "h1").act
    again = {each["host"]: each["mode"] for each in live_config.paused(records, revert=False, now_ns=6)}
    assert again == {"*": "OBSERVE"}
    assert {each["host"]: each["mode"] for each in live_config.resumed(records)} == {"*": "ACT", "h1": "ACT"}
    with pytest.raises(InputError, match="nothing is paused"):
        live_config.resumed({"*": {**live_config.PLAIN, **config()}})


def test_an_emergency_stop_needs_no_passwd_entry_of_its_user(monkeypatch):
    """Containers run commands under arbitrary user ids."""

    def unknown():
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr(user.getpass, "getuser", unknown)
    monkeypatch.setattr(user.os, "getuid", lambda: 54321)
    (stop,) = live_config.paused({}, revert=False, now_ns=0)
    changed = live_config.changed(None, "*", ["mode=OBSERVE"])
    for record in (stop, changed):
        assert record["by"].startswith("uid 54321@")
        codec.decode(codec.encode(CONFIG.record, record), CONFIG.record)


def test_an_emergency_stop_can_be_written_over_any_version():
    """The limits that follow from it must fit into a report as well."""
    for version in (MAX_VERSION, 2**63 - 1):
        claimed = live_config.paused({}, revert=False, now_ns=0)[0] | {"version": version}
        records = live_config.paused({"*": claimed}, revert=True, now_ns=0)
        found = codec.decode(codec.encode(CONFIG.record, records[0]), CONFIG.record)
        assert (found["mode"], found["version"]) == ("OBSERVE", 1)
        assert Limits.of({"*": found | {"version": version}, "h1": found}, "h1").version < 2**62


def test_limits_on_the_command_line():
    record = live_config.changed(
        None,
        "*",
        [
            "mode=ACT",
            "allowed_actions=RESTORE,REROUTE",
            "max_actions_per_s=20",
            "max_moved_share=0.25",
            "protected_jobs=a,b",
            "slice.red=20M:1.5G",
            "slice.blue=5M",
        ],
    )
    assert Limits.of({"*": record}, "h1") == Limits(
        True, frozenset({"REROUTE", "RESTORE"}), 20, 0.25, frozenset({"a", "b"}), version=1
    )
    assert record["slices"] == [
        {"tenant": "blue", "guarantee_bps": 5_000_000, "ceiling_bps": None},
        {"tenant": "red", "guarantee_bps": 20_000_000, "ceiling_bps": 1_500_000_000},
    ]
    assert not live_config.too_wide(record)
    back = live_config.changed(record, "*", [], ["slice.red", "protected_jobs", "max_moved_share"])
    assert [name for name, _, _ in live_config.differences(record, back)] == [
        "max_moved_share",
        "protected_jobs",
        "slice.red",
    ]
    for wrong in (
        "mode=YES",
        "allowed_actions=FLY",
        "max_actions_per_s=-1",
        "max_moved_share=2",
        "slice.red=9G:1G",
        "slice.=1",
        "slices=1",
        "max_moved_share=nan",
        "protected_jobs=two\nlines",
        "slice.\udcff=1M",
    ):
        with pytest.raises(InputError):
            live_config.changed(None, "*", [wrong])
    with pytest.raises(InputError, match="alone"):
        live_config.changed(None, "h1", ["max_moved_share=0.5"])


def test_a_config_without_limits_is_reported_unless_it_had_none_before():
    wide = live_config.changed(None, "*", ["mode=ACT", "max_actions_per_s=5000", "max_moved_share=1"])
    assert len(live_config.too_wide(wide)) == 2
    assert not live_config.too_wide(live_config.changed(wide, "*", ["protected_jobs=a"]), wide)
    every = live_config.changed(None, "*", ["mode=ACT", f"allowed_actions={','.join(live_config.ACTIONS)}"])
    assert live_config.too_wide(every)


def test_a_file_gives_all_settings(tmp_path):
    record = live_config.changed(None, "*", ["mode=ACT", "protected_jobs=a", "contention_min_kb=20"])
    after = live_config.from_file(record, "*", {"mode": "OBSERVE", "allowed_actions": ["REROUTE"]})
    assert live_config.differences(record, after) == [
        ("allowed_actions", None, ["REROUTE"]),
        ("contention_min_kb", 20.0, None),
        ("mode", "ACT", "OBSERVE"),
        ("protected_jobs", ["a"], None),
    ]
