"""The real actuator with required signatures, on a real log: forgeries and replays have no effect."""

from __future__ import annotations

import signal
import time

import pytest

from fabrictime.commands.config import live_config
from fabrictime.commands.config.live_config import LiveRecords
from fabrictime.runtime.topics_admin import publish_schemas
from schemas.kafka.publisher import Publisher
from schemas.signing import ControlSettings, Signer, new_key
from schemas.topics import ACTIONS, CONFIG, DECISIONS, FALLBACKS, REJECTS
from tests.actuators.desk import EVERY, KEY, config, decision
from tests.later_schema import colliding_schema, send_schema, signed_later


@pytest.fixture
def control(tmp_path):
    public = new_key(tmp_path / "key")
    return {
        "require_signature": True,
        "accepted_keys_file": str(public),
        "signing_key_file": str(tmp_path / "key"),
    }


@pytest.fixture
def signer(control):
    return Signer(ControlSettings(**control).signing_key_file)


def test_only_signed_records_act(log, read, start_act, own, wait_for, control, signer):
    def put(topic, key, record):
        log.put(topic.name, key, record)

    def put_signed(topic, key, record):
        put(topic, key, signer.signed(topic, key, record))

    now_ns = time.time_ns()
    old = signer.signed(CONFIG, "*", config(at_ns=now_ns - 9, version=1))
    put(CONFIG, "*", old)
    put_signed(CONFIG, "*", config(at_ns=now_ns, version=1))
    act = start_act("h1", control=control)
    owner = own("h1", sock_7=50_000)
    wait_for(lambda: "acts for" in act.output)
    put(CONFIG, "*", config(at_ns=now_ns + 1, version=9, mode="OBSERVE"))
    publisher = Publisher(log.bootstrap)
    publisher.publish(CONFIG, "*", None)
    publisher.flush(20)
    put(CONFIG, "*", old)
    put(DECISIONS, "h1", decision(0, to_path=50_001))
    altered = signer.signed(DECISIONS, "h1", decision(1, to_path=50_002)) | {"to_path": 50_003}
    put(DECISIONS, "h1", altered)
    genuine = signer.signed(DECISIONS, "h1", decision(2, to_path=50_004))
    put(DECISIONS, "h1", genuine)
    put_signed(DECISIONS, "h1", decision(3, to_path=50_005))
    put(DECISIONS, "h1", genuine)
    fallbacks = {"host": "h1", "shard": "s0", "epoch": 2**40, "seq": 0, "at_ns": 0, "config_version": 1}
    put(FALLBACKS, "h1", {**fallbacks, "flows": []})
    put_signed(DECISIONS, "h1", decision(4, to_path=50_006))
    reports = read(ACTIONS.name).until(lambda found: len(found) == 4)
    outcomes = [(each["seq"], each["outcome"]) for each in reports]
    assert outcomes == [(2, "APPLIED"), (3, "APPLIED"), (2, "STALE"), (4, "APPLIED")]
    assert owner.moves == [(KEY, 50_004), (KEY, 50_005), (KEY, 50_006)]
    rejects = read(REJECTS.name).until(lambda found: len(found) == 7)
    counts = sorted((each["topic"], each["reason"]) for each in rejects)
    assert counts == [
        *[(CONFIG.name, "FORGED")] * 2,
        (CONFIG.name, "REPLAYED"),
        *[(DECISIONS.name, "FORGED")] * 2,
        (DECISIONS.name, "REPLAYED"),
        (FALLBACKS.name, "FORGED"),
    ]
    act.end(signal.SIGKILL)
    put_signed(CONFIG, "*", config(at_ns=now_ns - 5, version=2, mode="OBSERVE"))
    act.start()
    read(REJECTS.name).until(lambda found: sum(each["reason"] == "REPLAYED" for each in found) >= 3)
    assert act.process.poll() is None


@pytest.mark.parametrize("forged", [False, True])
def test_a_later_decision_acts_by_the_schema_that_was_signed_alone(
    log, read, start_act, own, wait_for, control, signer, forged
):
    """The forged text has the fingerprint of the later schema, and its paths exchanged."""
    publish_schemas(log.bootstrap)
    text = colliding_schema("Decision", "from_path", "to_path") if forged else None
    send_schema(log.bootstrap, "Decision", text)
    log.put(CONFIG.name, "*", signer.signed(CONFIG, "*", config(at_ns=time.time_ns())))
    act = start_act("h1", control=control)
    owner = own("h1", sock_7=50_000)
    wait_for(lambda: "acts for" in act.output)
    later = decision(0, from_path=50_009, to_path=50_001)
    log.put(DECISIONS.name, "h1", signed_later(signer, DECISIONS, "h1", later))
    log.put(DECISIONS.name, "h1", signer.signed(DECISIONS, "h1", decision(1, to_path=50_002)))
    reports = read(ACTIONS.name).until(lambda records: records and records[-1]["seq"] == 1)
    assert [report["outcome"] for report in reports] == ["APPLIED"] * (1 if forged else 2)
    assert owner.moves == [(KEY, port) for port in ((50_002,) if forged else (50_001, 50_002))]
    if forged:
        [reject] = read(REJECTS.name).until(len)
        assert (reject["topic"], reject["reason"]) == (DECISIONS.name, "FORGED")


def test_the_command_line_signs_its_changes_and_builds_on_signed_ones_alone(log, control):
    settings = ControlSettings(**control)
    live = LiveRecords(log.bootstrap, control=settings)
    live.publish(live_config.changed(None, "*", ["mode=ACT", "protected_jobs=a"]))
    forged = config(at_ns=time.time_ns() + 10**9, version=50, allowed_actions=EVERY, mode="ACT")
    log.put(CONFIG.name, "*", forged)
    live = LiveRecords(log.bootstrap, control=settings)
    assert (live.records["*"]["version"], live.records["*"]["protected_jobs"]) == (1, ["a"])
    live.publish(live_config.changed(live.records["*"], "*", ["mode=OBSERVE"]))
    assert LiveRecords(log.bootstrap, control=settings).records["*"]["mode"] == "OBSERVE"
    unable = settings.model_copy(update={"signing_key_file": None})
    with pytest.raises(ValueError, match=r"needs control\.signing_key_file"):
        LiveRecords(log.bootstrap, control=unable).publish(forged)
