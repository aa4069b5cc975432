"""Real verbs in a Soft-RoCE guest: an unmodified program's queue pairs seen, moved under silent blackholes.

The guest starts once and tries all; each test looks at what came of one."""

from __future__ import annotations

import json
import os

import pytest

from native.core import decode_probe_batch, encode_probe_batch
from producers.flows.registrations import parse_registration
from producers.probe.rdma.records import columns_of
from schemas import codec

SCRIPT, GUEST_S = "everything.py", 400.0
REFUSED = "UDP_SPORT: Operation not supported (errno 95)"
TOO_LOW = f"{REFUSED}; SQD: a flow label gives source ports from 49152 on; no standby"

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(900)]


def test_routers_hash_source_ports_over_all_spines(guest):
    assert set(guest.found("fabric")["paths"].values()) == {"spine1", "spine2", "spine3"}


def test_an_unmodified_program_is_seen_with_its_path_and_its_bytes(guest):
    seen = guest.found("perftest_is_seen_moved_and_saved")
    assert seen["key"].startswith("qp:rxe_a0:")
    assert seen["verbs"] == "MOVE", "rxe has no rate limit, so none is offered"
    assert seen["first_port_spine"] == seen["first_spine"], "the source port told is the one on the wire"
    assert seen["sent_bytes"] == seen["iterations"] * (4096 + 58), "every write's frame, no more"
    key, registration = parse_registration(json.dumps(seen["report"]).encode())
    assert key[0] == "ROCE"
    assert (key[1], key[3], key[4]) == ("10.1.0.1", "10.2.0.1", 4791)
    assert registration.can == ("MOVE",)


def test_it_survives_two_silent_blackholes_and_ends_well(guest):
    seen = guest.found("perftest_is_seen_moved_and_saved")
    assert len(seen["moved_ms"]) == 2
    assert seen["exit"] == 0


def test_impossible_commands_fail_with_one_line(guest):
    seen = guest.found("perftest_is_seen_moved_and_saved")
    assert seen["pace"] == "FAILED RATE_LIMIT: Operation not supported (errno 95)"
    assert seen["low_port"] == f"FAILED {TOO_LOW}"
    assert seen["nobody"] == "FAILED no such queue pair"
    assert seen["unknown"] == "expected MOVE or PACE, id, key and value"


def test_failover_beats_the_transports_own_error(guest):
    seen = guest.found("failover_beats_the_transport")
    assert len(seen["failover_ms"]) == 6, "one blackhole after the other on the same queue pair"
    assert seen["rdma_failover_vs_transport_error"] <= 0.5


def test_where_nothing_else_moves_it_the_owners_standby_takes_over(guest):
    seen = guest.found("standby_takes_over")
    assert seen["return_codes"] == ["0", "2"], "one that is not known is ENOENT"
    assert seen["answer"] == "DONE 50123 STANDBY"
    assert seen["written"] == "True"
    assert seen["exit"] == 0


def test_without_sockets_there_is_no_thread(guest):
    seen = guest.found("quiet_without_sockets")
    assert (seen["threads_before"], seen["threads_after"], seen["exit"]) == (1, 1, 0)


def test_a_fork_and_an_actuator_that_comes_back_change_nothing(guest):
    seen = guest.found("forks_and_reconnects")
    assert (seen["threads"], seen["child"], seen["exit"]) == (1, "0", 0)
    assert seen["answer"] == "DONE 50001 SQD"


def test_queue_pairs_handed_over_by_a_python_program_move_as_well(guest):
    seen = guest.found("pyverbs_moves_registered_queue_pairs")
    assert seen["moved"] == seen["expected"]
    assert seen["reported"], "FLOW with the new source port"
    assert seen["pace"] == "FAILED RATE_LIMIT: Operation not supported (errno 95)"
    assert seen["low_port"].startswith("FAILED UDP_SPORT: ")
    assert seen["nobody"] == "FAILED no such queue pair"
    assert seen["exit"] == 0


def test_the_guest_left_nothing_here(guest):
    assert not [name for name in os.listdir("/sys/class/net") if name in ("a0", "a1", "b0")]


def test_rdma_probes_take_the_paths_of_their_source_ports(guest):
    seen = guest.found("probers_see_every_path")
    assert len(seen["spine_of"]) == 6, "a path a queue pair"
    taken = set(seen["spine_of"].values())
    assert len(taken) > 1
    assert {spine for spine, packets in seen["packets"].items() if packets} == taken


def test_a_silent_spine_is_lost_on_its_own_paths_alone(guest):
    seen = guest.found("probers_see_every_path")
    for path, reported in seen["while_dead"].items():
        if int(path) in seen["dead"]:
            assert reported["lost"] > 2
        else:
            assert reported["lost"] == 0
            assert reported["answered"] > 5
    assert seen["ended"] == {"a0": "ended with 0", "b0": "ended with 0"}


def test_rdma_samples_are_probe_batches_as_all_others(guest):
    seen = guest.found("probers_see_every_path")
    samples = lost = 0
    for number, batch in enumerate(seen["batches"]):
        data = codec.header("ProbeBatch") + encode_probe_batch(columns_of("guest/rxe_a0", 7, batch))
        record = codec.decode(data, "ProbeBatch")
        assert (record["nic"], record["run"], record["batch"]) == ("guest/rxe_a0", 7, number)
        assert record["clock_ns"] == record["system_ns"], "one clock, the system's"
        columns = decode_probe_batch(data, len(codec.header("ProbeBatch")))
        assert set(columns.peers) <= {"guest/rxe_b0"}
        assert set(columns.path.tolist()) <= {int(path) for path in seen["spine_of"]}
        assert all(0 < each < 1500e6 for each in (*columns.forward, *columns.reverse)), "one clock, so delays"
        assert all(0 <= each < 10e9 for each in columns.turnaround)
        assert all(abs(each - record["clock_ns"]) < 10e9 for each in columns.sent)
        samples, lost = samples + len(columns.sent), lost + int(columns.lost.sum())
    last = seen["batches"][-1]
    assert samples == last["counters"]["samples"] > 40
    assert lost == last["counters"]["lost"] > 5
    assert 0 < last["stamp_error_ns"] < 1500e6


def test_refused_hardware_timestamps_fall_back_to_user_space(guest):
    ready = guest.found("probers_see_every_path")["ready"]["a0"]
    assert ready["hardware"] is False
    assert ready["refused"] == ["completion stamps: Operation not supported (errno 95)"]
