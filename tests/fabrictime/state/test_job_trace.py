"""A job's operations as trace events and as Chakra nodes."""

from __future__ import annotations

from fabrictime.state.job_trace import FIRST_RANK, JOB, LINKS, chakra_nodes, chrome_events, operations_of
from schemas.records import CollectiveBatch, ContentionWindow, LinkHealth
from tests.fabrictime.commands.jobs.job_diagnoses import LINK, contended, healthy
from tests.records import make, make_part
from tests.streams.diagnosis.job_batches import MS, S, batch, run_of

T = 1_900_000_000 * S


def operation(seq, begin_ns, end_ns, **more):
    return make_part(
        CollectiveBatch,
        "CollectiveOperation",
        **{"seq": seq, "function": "ALL_REDUCE", "begin_ns": begin_ns, "end_ns": end_ns, **more},
    )


def test_ranks_are_processes_and_operations_slices_with_their_splits():
    split = operation(7, T, T + 20 * MS, gpu_late_ns=2 * MS, network_late_ns=10 * MS, peer=None, bytes=64)
    transfer = make_part(
        CollectiveBatch,
        "CollectiveTransfer",
        operation=0,
        channel=3,
        peer=2,
        sends=True,
        begin_ns=T,
        end_ns=T + MS,
    )
    record = batch("A", 1, 0, T, operations=[split], transfers=[transfer], summaries=[])
    events = list(chrome_events([record], from_ns=T))
    names = {each["args"]["name"] for each in events if each["ph"] == "M"}
    assert names >= {"rank 1 (h1/e0)", "communicator c0", "channel 3 to rank 2"}
    slices = [each for each in events if each["ph"] == "X"]
    assert {each["pid"] for each in slices} == {FIRST_RANK + 1}
    assert [(each["name"], each["ts"], each["dur"]) for each in slices] == [
        ("ALL_REDUCE", 0, 20_000.0),
        ("GPU late", 0, 2_000.0),
        ("network", 2_000.0, 10_000.0),
        ("channel 3 to rank 2", 0, 1_000.0),
    ]
    assert (slices[0]["args"]["seq"], slices[0]["args"]["clock"]) == (7, "SYNCED")


def test_an_operation_that_was_published_as_running_appears_once():
    early = batch("A", 0, 0, T, operations=[operation(1, T, None, peer=None)])
    later = batch(
        "A", 0, 1, T, operations=[operation(1, T, T + S, peer=None), operation(9, T, T, communicator=8)]
    )
    for records in ([early, later], [later, early], [early, later, later]):
        assert [each["end_ns"] for _, _, each in operations_of(records)] == [T + S]
    assert [each["end_ns"] for _, _, each in operations_of([early])] == [None]
    (running,) = [each for each in chrome_events([early]) if each["ph"] == "X"]
    assert (running["dur"], running["args"]["runs"]) == (S / 1e3, True)


def test_verdicts_speeds_queues_and_health_are_tracks():
    window = make(
        ContentionWindow, link=LINK, opened_ns=T, updated_ns=T + S, closed_ns=T + 2 * S, kind="COLLISION",
        depth_bytes=80e3, jobs=["A", "B"], text="A and B collide",
    )  # fmt: skip
    state = make(LinkHealth, subject="leaf2:swp3<>spine3:swp2", state="DOWN", since_ns=T + S, text="gone")
    records = [healthy("A", 1, T), healthy("A", 2, T + S), contended("A", 3, T + 2 * S)]
    events = list(chrome_events([], records, [window], [state]))
    instants = [(each["pid"], each["name"]) for each in events if each["ph"] == "i"]
    assert instants == [
        (JOB, "HEALTHY"),
        (JOB, f"CONTENTION {LINK}"),
        (LINKS, "DOWN leaf2:swp3 ⇄ spine3:swp2"),
    ]
    speeds = [each["args"]["value"] for each in events if each["name"] == "bus bandwidth Gbit/s"]
    assert speeds == [360.0, 360.0, 190.0]
    (queue,) = [each for each in events if each["ph"] == "X"]
    assert (queue["name"], queue["dur"]) == ("COLLISION", 2e6)


def test_chakra_nodes_follow_each_other_with_computing_between():
    traces = chakra_nodes(run_of("A", 2, T, ranks=2))
    assert sorted(traces) == [0, 1]
    head, *nodes = traces[1]
    assert head["version"] == "0.0.4"
    assert [each["type"] for each in nodes[:3]] == ["COMM_COLL_NODE", "COMP_NODE", "COMM_COLL_NODE"]
    assert [each["id"] for each in nodes] == [str(n) for n in range(1, 40)]
    assert [each["dataDeps"] for each in nodes[:3]] == [[], ["1"], ["2"]]
    assert (nodes[0]["durationMicros"], nodes[1]["durationMicros"]) == ("20000", "80000")
    assert {"name": "comm_type", "int64Val": "0"} in nodes[0]["attr"]
    assert {"name": "comm_size", "int64Val": str(1 << 26)} in nodes[0]["attr"]


def test_messages_name_their_peer_and_unknown_functions_are_left_out():
    operations = [
        operation(1, T, T + MS, function="SEND", peer=3),
        operation(1, T + MS, T + 2 * MS, function="RECEIVE", peer=2),
        operation(2, T + 2 * MS, T + 3 * MS, function="WAIT", peer=None),
        operation(3, T + 3 * MS, None, peer=None),
    ]
    (_, *nodes) = chakra_nodes([batch("A", 0, 0, T, operations=operations)])[0]
    assert [each["type"] for each in nodes] == ["COMM_SEND_NODE", "COMM_RECV_NODE"]
    assert {"name": "comm_dst", "int32Val": 3} in nodes[0]["attr"]
    assert {"name": "comm_src", "int32Val": 2} in nodes[1]["attr"]
