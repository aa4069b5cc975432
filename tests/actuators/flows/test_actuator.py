"""The flow actuator as a process, with a real log and endpoints: each decision is applied and reported
once.
"""

from __future__ import annotations

import itertools
import signal
import time
from contextlib import closing

import pytest

from actuators.flows import pending
from actuators.flows.actuator import FlowActuator
from actuators.flows.command_io import CommandIO
from actuators.settings import ActuatorSettings, HostSettings
from fabrictime.runtime.topics_admin import publish_schemas
from schemas.kafka.schema_log import FollowedSchemas
from schemas.topics import ACTIONS, ACTUATORS, CONFIG, DECISIONS, REJECTS, SCHEMAS
from tests.actuators import desk
from tests.later_schema import later_message, send_schema

S = 1_000_000_000
EVERY = ["REROUTE", "RESTORE", "PACE", "UNPACE", "SLICE"]
KEY = "sock:7"
FLOW = f"h1/b/{KEY}"


_seqs = itertools.count()


def decision(host="h1", seq=None, epoch=1, key=KEY, to_path=50_001, **fields):
    seq = next(_seqs) if seq is None else seq
    return desk.decision(seq, epoch, to_path, host=host, flow_id=f"{host}/b/{key}", **fields)


def config(mode="ACT", version=1, host="*", **fields):
    record = {"host": host, "version": version, "at_ns": 0, "by": "t", "mode": mode, **fields}
    return {"allowed_actions": EVERY, **record}


@pytest.fixture
def decide(log):
    def put(**given):
        record = decision(**given)
        log.put(DECISIONS.name, record["host"], record)
        return record["decision_id"]

    return put


def reports_of(reports, decision_id):
    return [each for each in reports if each["decision_id"] == decision_id]


def test_decisions_are_applied_and_reported_and_offsets_committed(log, read, start_act, own, decide):
    log.put(CONFIG.name, "*", config())
    act = start_act("h1", "h2")
    one, two = own("h1", sock_7=50_000), own("h2", "UDP_SPORT", sock_8=51_000)
    first = decide()
    other = decide(host="h2", key="sock:8", to_path=51_001)
    nobody = decide(host="h3", key="sock:9")
    late = decide(lasts_s=-1)
    log.put(DECISIONS.name, "h1", b"\xc3\x01 not a decision")
    actions = read(ACTIONS.name)
    reports = actions.until(lambda found: len(found) == 3)
    assert not reports_of(reports, nobody)
    assert reports_of(reports, late)[0]["outcome"] == "EXPIRED"
    done = reports_of(reports, first)[0]
    assert (done["outcome"], done["from_path"], done["to_path"]) == ("APPLIED", 50_000, 50_001)
    assert (done["how"], reports_of(reports, other)[0]["how"]) == ("SOCKET", "UDP_SPORT")
    assert read(REJECTS.name).until(len)[0]["reader"] == "actuator"
    code, text = act.end()
    assert code == 0, text
    act.start()  # the next process continues after the last completed decision
    again = decide(to_path=50_002)
    reports = actions.until(lambda found: reports_of(found, again))
    assert len(reports) == 4
    assert (one.moves, two.moves) == ([(KEY, 50_001), (KEY, 50_002)], [("sock:8", 51_001)])
    states = read(ACTUATORS.name).until(lambda found: any(each["ending"] for each in found))
    assert {row["host"]: row["mode"] for row in states[0]["hosts"]} == {"h1": "ACT", "h2": "ACT"}


def test_a_kill_between_command_and_answer_gives_one_report(log, read, start_act, own, decide, wait_for):
    log.put(CONFIG.name, "*", config())
    act = start_act("h1", answer_ms=10_000)
    owner = own("h1", sock_7=50_000)
    owner.silent = True  # it carries out commands without an answer
    moved = decide()
    wait_for(lambda: owner.moves)
    act.end(signal.SIGKILL)
    owner.silent = False
    act.start()
    actions = read(ACTIONS.name)
    report = actions.until(lambda found: reports_of(found, moved))[0]
    assert (report["outcome"], report["from_path"], report["to_path"]) == ("APPLIED", 50_000, 50_001)
    later = decide(to_path=50_002)
    reports = actions.until(lambda found: reports_of(found, later))
    assert [each["outcome"] for each in reports] == ["APPLIED", "APPLIED"], "one report of each"
    assert owner.moves == [(KEY, 50_001), (KEY, 50_002)]


def test_a_kill_between_applying_and_reporting_gives_one_report(log, read, start_act, own, decide, wait_for):
    log.put(CONFIG.name, "*", config())
    act = start_act("h1", answer_ms=10_000)
    owner = own("h1", sock_7=50_000)
    owner.holding = True
    moved = decide()
    wait_for(lambda: owner.waiting)
    log.down()
    owner.answer()
    wait_for(lambda: '"APPLIED"' in act.store)
    act.end(signal.SIGKILL)
    log.up()
    act.start()
    later = decide(to_path=50_002)
    reports = read(ACTIONS.name).until(lambda found: reports_of(found, later))
    assert [each["outcome"] for each in reports_of(reports, moved)] == ["APPLIED"]
    assert (reports_of(reports, moved)[0]["from_path"], reports_of(reports, moved)[0]["to_path"]) == (
        50_000,
        50_001,
    )
    assert owner.moves == [(KEY, 50_001), (KEY, 50_002)]


def test_two_policy_workers_duplicates_and_reordered_decisions(log, read, start_act, own, decide):
    log.put(CONFIG.name, "*", config())
    start_act("h1")
    owner = own("h1", sock_7=50_000, sock_8=51_000)
    decide(epoch=1, seq=500)
    actions = read(ACTIONS.name)
    actions.until(len)
    for given in (
        {"epoch": 2, "seq": 1, "to_path": 50_002},
        {"epoch": 1, "seq": 501},
        {"epoch": 1, "seq": 502, "key": "sock:8"},
        {"epoch": 2, "seq": 1, "to_path": 50_002},
        {"epoch": 2, "seq": 0, "to_path": 50_003},
        {"epoch": 2, "seq": 2, "config_version": 9},
    ):
        decide(**given)
    reports = actions.until(lambda found: len(found) == 7)
    assert sorted((each["decision_id"], each["outcome"]) for each in reports) == [
        ("s0/1/500", "APPLIED"),
        ("s0/1/501", "STALE"),
        ("s0/1/502", "STALE"),
        ("s0/2/0", "STALE"),
        ("s0/2/1", "APPLIED"),
        ("s0/2/1", "DUPLICATE"),
        ("s0/2/2", "OLD_CONFIG"),
    ]
    assert owner.moves == [(KEY, 50_001), (KEY, 50_002)]


def test_a_lease_ends_in_time_while_the_log_is_stopped(log, read, start_act, own, decide, wait_for):
    log.put(CONFIG.name, "*", config())
    act = start_act("h1")
    owner = own("h1", sock_7=50_000)
    wait_for(lambda: "acts for" in act.output)  # a busy machine may take longer than the lease lasts
    paced = decide(action="PACE", rate_bps=20_000_000, to_path=None, lasts_s=3.0)
    wait_for(lambda: owner.rates == {KEY: 20_000_000})
    log.down()
    wait_for(lambda: owner.rates == {KEY: 0})
    log.up()
    reports = read(ACTIONS.name).until(lambda found: len(reports_of(found, paced)) == 2)
    assert [each["outcome"] for each in reports_of(reports, paced)] == ["APPLIED", "ENDED"]


def test_on_exit_the_actuator_ends_its_leases(log, read, start_act, own, decide, wait_for):
    log.put(CONFIG.name, "*", config())
    act = start_act("h1")
    owner = own("h1", sock_7=50_000)
    decide(to_path=50_001)
    paced = decide(action="PACE", rate_bps=20_000_000, to_path=None)
    wait_for(lambda: owner.rates == {KEY: 20_000_000})
    code, text = act.end()
    assert code == 0, text
    assert (owner.rates, owner.flows) == ({KEY: 0}, {KEY: 50_001})
    reports = read(ACTIONS.name).until(lambda found: len(reports_of(found, paced)) == 2)
    assert [each["outcome"] for each in reports_of(reports, paced)] == ["APPLIED", "REVERTED"]


def test_an_endpoint_that_never_answers_delays_no_other(log, read, start_act, own, decide):
    log.put(CONFIG.name, "*", config())
    start_act("h1")
    slow, quick = own("h1", sock_7=50_000), own("h1", sock_8=51_000)
    slow.holding = True
    stuck = [decide(to_path=50_001), decide(to_path=50_002)]
    moved = decide(key="sock:8", to_path=51_001)
    reports = read(ACTIONS.name).until(lambda found: len(found) == 3)
    assert [reports_of(reports, each)[0]["outcome"] for each in (*stuck, moved)] == [
        "FAILED",
        "FAILED",
        "APPLIED",
    ]
    assert "no answer" in reports_of(reports, stuck[0])[0]["detail"]
    assert quick.moves == [("sock:8", 51_001)]


def test_invalid_lines_are_answered_and_have_no_effect(log, start_act, own, decide, read, wait_for):
    log.put(CONFIG.name, "*", config())
    start_act("h1")
    odd, valid = own("h1", sock_6=52_000), own("h1", sock_7=50_000)
    wait_for(lambda: odd._connection)
    for line in (
        "HELLO",
        "FLOW sock:x 1 MOVE h1",
        "FLOW sock:1 0 MOVE h1",
        "FLOW sock:1 5 MOVE h9",
        "DONE 99",
    ):
        odd.send_line(line)
    wait_for(lambda: len(odd.errors) == 5)
    odd.send_line("DONE 99 1 SOCKET")
    odd.send_line("x" * 2000)
    moved = decide()
    assert (
        reports_of(read(ACTIONS.name).until(lambda found: reports_of(found, moved)), moved)[0]["outcome"]
        == "APPLIED"
    )
    assert valid.moves == [(KEY, 50_001)]


class Stepped:
    """The actuator in this process, with a real log, so that a test can hold up the topic of schemas."""

    def __init__(self, log, folder):
        registry, kafka = FollowedSchemas(), {"bootstrap": log.bootstrap}
        settings = ActuatorSettings(kafka=kafka, control_socket=folder / "c.sock", settle_ms=3000)
        hosts = [HostSettings(host="h1", clock_file=folder / "clock")]
        self.command_io = CommandIO(settings.kafka, "h1", ["h1"], registry)
        self.actuator = FlowActuator(
            settings, hosts, "h1", self.command_io, simulated=True, registry=registry
        )
        self.command_io.start()
        self.until(lambda: self.actuator.ready)

    def until(self, done, timeout_s=60.0):
        end_s = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < end_s, self.actuator.status
            self.actuator.step(0.01)

    def hold_up_schemas(self):
        self.command_io._reader.pause([(SCHEMAS.name, 0)])

    def let_schemas_come(self):
        self.command_io._reader.resume([(SCHEMAS.name, 0)])

    def close(self):
        self.command_io.close()
        self.actuator.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_decisions_of_a_later_version_wait_for_their_schema(
    log, read, own, decide, tmp_path, monkeypatch, restarted
):
    """None is lost, not even by an end meanwhile, none is applied twice, and none after its expiry."""
    monkeypatch.setattr(pending, "MAX_WAIT_S", 1000.0)
    publish_schemas(log.bootstrap)
    send_schema(log.bootstrap, "ActuatorConfig")
    log.put(CONFIG.name, "*", later_message("ActuatorConfig", config()))
    owner = own("h1", sock_7=50_000, sock_8=51_000, sock_9=52_000)
    expired = decision(key="sock:7", to_path=50_009, lasts_s=-1)
    excluded = decision(key="sock:8", to_path=51_009)
    waiting = decision(key="sock:9", to_path=52_001)
    with closing(Stepped(log, tmp_path)) as stepped:
        stepped.until(lambda: stepped.actuator.endpoints.flows() == 3)
        stepped.hold_up_schemas()
        send_schema(log.bootstrap, "Decision")
        for later in (expired, excluded, waiting, waiting):
            log.put(DECISIONS.name, "h1", later_message("Decision", later))
        newer = decide(key="sock:8", to_path=51_001)
        stepped.until(lambda: stepped.actuator.reports == {"APPLIED": 1})
        assert "4 waiting for their schema" in stepped.actuator.status
        if not restarted:
            stepped.let_schemas_come()
            stepped.until(lambda: sum(stepped.actuator.reports.values()) == 5)
    if restarted:
        with closing(Stepped(log, tmp_path)) as stepped:
            stepped.until(lambda: sum(stepped.actuator.reports.values()) == 5)
    reports = read(ACTIONS.name).until(lambda found: len(found) == (6 if restarted else 5))
    outcomes = [
        [each["outcome"] for each in reports_of(reports, decision_id)]
        for decision_id in (newer, *(record["decision_id"] for record in (expired, excluded, waiting)))
    ]
    assert outcomes[0][0] == "APPLIED"
    assert outcomes[1:] == [["EXPIRED"], ["STALE"], ["APPLIED", "DUPLICATE"]]
    assert owner.moves == [("sock:8", 51_001), ("sock:9", 52_001)]


def test_a_decision_is_refused_at_once_if_the_topic_lacks_its_schema(log, read, start_act, wait_for):
    act = start_act("h1")
    wait_for(lambda: "acts for" in act.output)
    publish_schemas(log.bootstrap)  # the topic comes while the actuator runs
    log.put(DECISIONS.name, "h1", later_message("Decision", decision()))
    [reject] = read(REJECTS.name).until(len)
    assert (reject["topic"], reject["reason"]) == (DECISIONS.name, "UNKNOWN_SCHEMA")


def test_a_decision_with_an_unexpected_error_in_its_check_is_refused(log, read, tmp_path, monkeypatch):
    with closing(Stepped(log, tmp_path)) as stepped:
        monkeypatch.setattr(stepped.actuator._inputs, "decoded", lambda topic, message: message.value.missing)
        log.put(DECISIONS.name, "h1", decision())
        stepped.until(lambda: stepped.actuator.command_io.rejected == 1)
    [reject] = read(REJECTS.name).until(len)
    assert (reject["topic"], reject["reason"]) == (DECISIONS.name, "OTHER")
