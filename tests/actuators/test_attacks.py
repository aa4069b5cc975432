"""Attacks on the flow actuator: lying, flooding and hanging endpoints, absurd records, full disks, a
second actuator.

The actuator must not exit, apply a decision twice, or leave anything behind.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actuators.flows.local_repair import FRESH_NS, DeadLinks
from actuators.flows.state import MAX_LEASE_NS
from actuators.journal import Journal
from schemas import codec
from schemas.ipc import InUse, leave, listen
from schemas.limits import Limits
from schemas.topics import ACTIONS, CONFIG, DECISIONS, FALLBACKS, REJECTS
from tests.actuators.desk import FLOW, KEY, Desk, S, config, configs, decision, heard


def pace(seq, rate_bps=20_000_000, **fields):
    return decision(seq, to_path=None, action="PACE", rate_bps=rate_bps, **fields)


def test_absurd_versions_have_no_effect(desk):
    records = configs(config(version=2**63 - 1), config("h1", 2**63 - 1))
    desk.own("FLOW sock:7 50000 MOVE")
    desk.it.take_config(records)
    desk.it.take(decision())
    assert desk.outcomes == [("s0/1/0", "OLD_CONFIG")]
    assert desk.reports[0]["config_version"] == Limits.of(records, "h1").version


def test_an_order_to_revert_from_the_far_future_spares_later_actions(desk):
    program = desk.own("FLOW sock:7 50000 MOVE,PACE")
    desk.now_ns = 100 * S
    desk.it.take_config(configs(config(revert_before_ns=2**62)))
    desk.now_ns = 200 * S
    desk.it.take(decision(expires_at_ns=300 * S))
    assert heard(program) == ["MOVE 1 sock:7 50001 h1"]
    program.sendall(b"FLOW sock:7 50001 MOVE,PACE\nDONE 1 50001 SOCKET\nFLOW sock:7 50001 MOVE,PACE\n")
    desk.until(lambda: desk.reports)
    desk.it.take_config(configs(config(revert_before_ns=2**62, version=2)))
    assert (desk.it.in_force, desk.it.reverting, desk.it.busy) == (1, 0, False)
    desk.now_ns = 250 * S
    desk.it.take_config(configs(config(revert_before_ns=250 * S, version=3)))
    assert heard(program) == ["MOVE 2 sock:7 50000 h1"], "and a person's order is still one"


def test_every_rate_ends(desk):
    program = desk.own("FLOW sock:7 50000 MOVE,PACE")
    desk.it.take(pace(0, expires_at_ns=2**62))
    assert desk.outcomes == [("s0/1/0", "FAILED")]
    desk.it.take(pace(1))
    assert heard(program) == ["PACE 1 sock:7 20000000 h1"]
    program.sendall(b"DONE 1 20000000 PACING\n")
    desk.until(lambda: len(desk.reports) == 2)
    desk.now_ns = time.time_ns() - 3 * MAX_LEASE_NS  # a clock that was wrong is right again
    desk.until(lambda: desk.endpoints.due_ns() is not None)
    assert heard(program) == ["PACE 2 sock:7 0 h1"]


def test_a_decision_for_another_host_or_boot_changes_no_local_fence(tmp_path):
    desk = Desk(tmp_path, boot="b")
    desk.own("FLOW sock:7 50000 MOVE,PACE")
    desk.it.take(decision(0, to_path=50_000))
    for flow_id in ("h2/b/sock:7", "h1/other/sock:7", "sock:7", "//sock:7"):
        desk.it.take(decision(99, flow_id=flow_id))
        assert desk.reports[-1]["outcome"] == "NO_FLOW"
        assert desk.reports[-1]["flow_id"] == flow_id
    desk.it.take(decision(1, to_path=50_000))
    assert desk.reports[-1]["outcome"] == "APPLIED"
    desk.close()


def test_many_decisions_for_a_hanging_endpoint_are_reported_and_the_newest_wins(desk):
    program = desk.own("FLOW sock:7 50000 MOVE")
    for seq in range(1000):
        desk.it.take(decision(seq, to_path=50_001 + seq))
    assert [outcome for _, outcome in desk.outcomes] == ["LIMITED"] * (1000 - 1 - 64)
    program.close()
    desk.until(lambda: len(desk.reports) == 1000)
    assert desk.outcomes[-1] == ("s0/1/999", "NO_FLOW")


def test_many_flows_without_endpoints_cost_little(desk):
    """Decisions that wait for endpoints to reconnect after a start are not checked repeatedly."""
    desk.it.settled = False
    for seq in range(60_000):
        desk.it.take(decision(seq, flow_id=f"h1/b/sock:{seq + 100}"))
    desk.it.settle()
    assert len(desk.reports) == 60_000


def test_the_number_of_shards_is_bounded(desk):
    for number in range(3000):
        desk.it.take(decision(shard=f"s{number}", decision_id=f"s{number}/1/0"))
    assert len(desk.it._host_state.fence.epochs) <= 1000


@pytest.mark.parametrize(
    "line",
    [
        b"5",
        b"null",
        b"[" * 100_000,
        b'["host h1", {}]',
        b'["host h1", {"epochs": 3}]',
        b"\xff\x00",
        b'["flow h1/b/sock:7", {"flow_id": "h1/b/sock:7"}]',
        b'["flow h1/b/sock:7", {"flow_id": 7}]',
        b'["flow h1/b/sock:7", {"flow_id":"h1/b/sock:7","leases":{"PACE":5},"fence":[1,2],"colour":1}]',
    ],
)
def test_invalid_journal_states_are_ignored(tmp_path, line):
    intact = Journal(tmp_path / "a.jsonl")
    first = Desk(tmp_path, store=intact)
    first.own("FLOW sock:7 50000 MOVE")
    first.it.take(decision(5, to_path=50_000))
    first.close()
    intact.close()
    spoilt = line + b"\n" + (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(spoilt)
    journal = Journal(tmp_path / "a.jsonl")
    desk = Desk(tmp_path, store=journal, states=journal.states)
    desk.own("FLOW sock:7 50000 MOVE")
    desk.it.take(decision(4))
    assert desk.reports[-1]["outcome"] == "STALE", "what could be read counts"
    desk.close()
    journal.close()


def test_on_a_full_disk_it_continues_but_sets_no_rate(tmp_path):
    journal = Journal(tmp_path / "a.jsonl")
    desk = Desk(tmp_path, store=journal)
    program = desk.own("FLOW sock:7 50000 MOVE,PACE")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "a.jsonl").stat().st_size + 40, limits[1]))
    try:
        desk.it.take(pace(0))
        assert desk.outcomes == [("s0/1/0", "FAILED")]
        desk.it.take(decision(1))
        assert heard(program) == ["MOVE 1 sock:7 50001 h1"], "what a kill cannot spoil is done"
        program.sendall(b"DONE 1 50001 SOCKET\n")
        desk.until(lambda: len(desk.reports) == 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    desk.until(lambda: journal.save("x", {}))
    desk.it.take(pace(2))
    assert heard(program) == ["PACE 2 sock:7 20000000 h1"]
    journal.close()
    again = Journal(tmp_path / "a.jsonl")
    assert not again.unreadable
    assert again.states["flow h1/b/sock:7"]["set_path"] == 50_001, "what was missed meanwhile is there"
    again.close()
    desk.close()


def test_a_symbolic_link_at_the_new_journal_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "a.jsonl.new").symlink_to(tmp_path / "victim")
    Journal(tmp_path / "a.jsonl").close()
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "a.jsonl").is_symlink()


def test_a_world_writable_folder_is_refused_for_a_socket(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="other users cannot write"):
        listen(tmp_path / "open" / "c.sock")
    (tmp_path / "open").chmod(0o1777)
    leave(tmp_path / "open" / "c.sock", listen(tmp_path / "open" / "c.sock"))
    assert not (tmp_path / "open" / "c.sock").exists()


def test_a_socket_is_owner_only_with_any_umask(tmp_path):
    before = os.umask(0)
    try:
        made = listen(tmp_path / "run" / "c.sock")
    finally:
        os.umask(before)
    assert (tmp_path / "run" / "c.sock").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    with pytest.raises(InUse):
        listen(tmp_path / "run" / "c.sock")
    (tmp_path / "run" / "c.sock").unlink()
    other = listen(tmp_path / "run" / "c.sock")
    leave(tmp_path / "run" / "c.sock", made)
    assert (tmp_path / "run" / "c.sock").exists(), "it is another one's by now"
    leave(tmp_path / "run" / "c.sock", other)


LISTENER = """
import sys
from pathlib import Path
from schemas.ipc import InUse, listen
sys.stdin.readline()
try:
    made = listen(Path(sys.argv[1]))
except InUse:
    print("in use", flush=True)
else:
    print("listens", flush=True)
    sys.stdin.readline()
    made.close()
"""


def test_of_many_simultaneous_starts_one_listens(tmp_path):
    root = Path(__file__).parents[2]
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", LISTENER, tmp_path / "c.sock"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        for _ in range(6)
    ]
    for each in begun:
        each.stdin.write("go\n")
        each.stdin.flush()
    outcomes = [each.stdout.readline().strip() for each in begun]
    for each in begun:
        each.communicate("end\n", timeout=20)
    assert sorted(outcomes) == ["in use"] * 5 + ["listens"]


def test_a_second_actuator_exits_and_the_first_keeps_its_journal(log, read, start_act, own, wait_for):
    log.put(CONFIG.name, "*", config())
    first = start_act("h1")
    owner = own("h1", sock_7=50_000)
    wait_for(lambda: "acts for" in first.output)
    second = start_act("h1")
    assert second.process.wait(20) == 2
    wait_for(lambda: "another process listens there already" in second.output)
    log.put(DECISIONS.name, "h1", pace(0, expires_at_ns=time.time_ns() + 6 * S))
    wait_for(lambda: owner.rates == {KEY: 20_000_000})
    read(ACTIONS.name).until(len)
    first.end(signal.SIGKILL)
    first.start()
    wait_for(lambda: owner.rates == {KEY: 0})
    read(ACTIONS.name).until(lambda found: [each["outcome"] for each in found][-1:] == ["ENDED"])


def test_hostile_records_do_not_stop_the_actuator(log, read, start_act, own, wait_for):
    start = {"host": "h1", "shard": "s0", "seq": 0, "at_ns": 0, "config_version": 1, "flows": []}
    log.put(CONFIG.name, "*", config())
    for number in range(50):
        log.put(CONFIG.name, f"other{number}", config(f"other{number}", 2**63 - 1, mode="OBSERVE"))
    log.put(CONFIG.name, "h1", b"\xc3\x01 not a config")
    log.put(CONFIG.name, "*", config("h1"))
    act = start_act("h1")
    owner = own("h1", sock_7=50_000)
    wait_for(lambda: "acts for" in act.output)
    log.put(FALLBACKS.name, "h1", {**start, "epoch": 2**62})
    log.put(DECISIONS.name, "h1", decision(0, epoch=2**62))
    log.put(DECISIONS.name, "h1", decision(0, epoch=2**63 - 1, shard="s1"))
    log.put(DECISIONS.name, "h1", decision(1, host="h2"))
    log.put(DECISIONS.name, "h1", b"\xc3\x01" + b"x" * 500_000)
    for seq, port in enumerate((0, 70_000, 2**31 - 1)):
        log.put(DECISIONS.name, "h1", decision(2 + seq, to_path=port))
    log.put(DECISIONS.name, "h1", pace(8, rate_bps=2**63 - 1))
    log.put(DECISIONS.name, "h1", decision(9, to_path=50_009))
    reports = read(ACTIONS.name).until(lambda found: len(found) == 3)
    assert [each["outcome"] for each in reports] == ["FAILED", "FAILED", "APPLIED"], "others are refused"
    assert owner.moves == [(KEY, 50_009)]
    rejects = read(REJECTS.name).until(lambda found: len(found) == 9)
    assert sorted(each["reason"] for each in rejects) == [
        *["OUT_OF_RANGE"] * 5,
        "TOO_LARGE",
        "UNKNOWN_SCHEMA",
        "WRONG_KEY",
        "WRONG_KEY",
    ]
    assert act.process.poll() is None


def status_report(nic="h1/eth1", monotonic_ns=10 * S, paths=()):
    return {"nic": nic, "run": 1, "monotonic_ns": monotonic_ns, "paths": list(paths)}


def test_repeated_reports_and_too_many_probers_are_refused():
    lost = {
        "peer": "h2/eth1",
        "path": 1,
        "dead": True,
        "loss_streak": 5,
        "answered_age_ns": None,
        "first_lost_age_ns": S,
        "last_lost_age_ns": 0,
        "links": ["a>b"],
        "back_links": [],
    }
    links = DeadLinks()
    links.take(status_report(paths=[lost]), 10 * S)
    assert links.dead == {"a>b"}
    links.take(status_report(monotonic_ns=11 * S), 11 * S)
    with pytest.raises(ValueError, match="expected newer"):
        links.take(status_report(paths=[lost]), 11 * S)
    assert not links.dead
    with pytest.raises(ValueError, match="expected newer"):
        links.take(status_report(monotonic_ns=11 * S, paths=[lost]), 11 * S + FRESH_NS + 1)
    for number in range(4095):
        links.take(status_report(f"h1/e{number}", 12 * S), 12 * S)
    with pytest.raises(ValueError, match="probers report already"):
        links.take(status_report("h1/more", 12 * S), 12 * S)
    links.take(status_report("h1/more", 20 * S), 20 * S)


def test_invalid_datagrams_move_nothing(log, start_act, own, tmp_path, wait_for):
    log.put(CONFIG.name, "*", config())
    path = {
        "peer": "h2/eth1",
        "path": 1,
        "dead": True,
        "loss_streak": 10**9,
        "answered_age_ns": None,
        "first_lost_age_ns": 2**62,
        "last_lost_age_ns": 0,
        "links": ["a>b"],
        "back_links": [],
    }
    row = {"flow_id": FLOW, "path": 50_000, "other_paths": [], "links": ["a>b"], "other_links": []}
    for others in ([0, 70_000], [50_000]):
        row["other_paths"] += others
        row["other_links"] += [["c>d"]] * len(others)
    fallbacks = {
        "host": "h1",
        "shard": "s0",
        "epoch": 1,
        "seq": 0,
        "at_ns": 0,
        "config_version": 1,
        "flows": [row],
    }
    log.put(FALLBACKS.name, "h1", fallbacks)
    act = start_act("h1")
    owner = own("h1", sock_7=50_000)
    wait_for(lambda: "acts for" in act.output)
    now_ns = time.monotonic_ns()
    valid = codec.encode("PathStatusReport", status_report(monotonic_ns=now_ns, paths=[path] * 400))
    foreign = codec.encode("PathStatusReport", status_report("h9/eth1", now_ns, [path]))
    draw = random.Random(3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as prober:
        for data in (b"", b"x" * 100_000, foreign, valid[:-3], valid + b"x", draw.randbytes(500), valid):
            prober.sendto(data, str(tmp_path / "path-status.sock"))
    wait_for(lambda: "path status report: 'h9/eth1'" in act.output)
    log.put(DECISIONS.name, "h1", decision(0, to_path=50_005))
    wait_for(lambda: owner.moves)
    assert owner.moves == [(KEY, 50_005)]
    assert act.process.poll() is None
