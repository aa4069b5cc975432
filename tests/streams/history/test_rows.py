"""Links, queues, contention, alerts, flows and paths become rows; repeated records overwrite."""

import time

import pytest

from schemas import codec, tables, topics
from schemas.codec import BadRecord
from schemas.kafka.message import Message
from streams.history import rows
from streams.history.clickhouse import Writer
from streams.runtime.history_settings import HistorySinkSettings
from tests.records import make, make_part, reason_record

S = 1_000_000_000
T = time.time_ns() // S * S - 100 * S  # retention drops what is old
LINK = "leaf1:swp3>spine1:swp1"


def health(seq=1, **fields):
    return {
        "subject": "leaf1:swp3<>spine1:swp1",
        "kind": "LINK",
        "shard": "s0",
        "seq": seq,
        "state": "DOWN",
        "before": "UP",
        "links": [LINK],
        "since_ns": T,
        "evaluated_ns": T + 40_000_000,
        "flaps_hour": 1,
        "flaps_total": 3,
        "flap_ns": [T],
        "detected_by": "PROBES",
        "text": "leaf1 to spine1 is DOWN",
        **fields,
    }


def queues(*links, **fields):
    return {
        "shard": "s0",
        "window": T // S,
        "part": 0,
        "parts": 1,
        "window_start_ns": T,
        "slot_ns": S,
        "slots": 1,
        "synced": True,
        "paths": 9,
        "solved_ns": T + S,
        "links": [
            {
                "link": link,
                "rate_bps": 10**9,
                "depth_mean_bytes": 5e4,
                "depth_max_bytes": 9e4,
                "bound_bytes": 3e3,
                "utilisation": 0.75,
                "utilisation_bound": None,
                "from_flows": False,
                "samples": 500,
                "group": 0,
                "slot": [3],
                "depth_bytes": [9e4],
                "dscp": 26,
                "ce_share": 0.25,
                "ce_slot": [3],
                "ce": [0.5],
            }
            for link in links
        ],
        **fields,
    }


def contention(update=0, **fields):
    flow = {
        "flow_id": "h1/b/sock:1",
        "job": None,
        "tenant": None,
        "nic": "h1/eth1",
        "peer": "h2/eth1",
        "rate_bps": 5e8,
        "share": 0.5,
    }
    return {
        "window_id": f"s0/{LINK}/{T}",
        "link": LINK,
        "shard": "s0",
        "update": update,
        "state": "OPENED",
        "kind": "COLLISION",
        "confidence": 0.5,
        "opened_ns": T,
        "updated_ns": T,
        "closed_ns": None,
        "depth_bytes": 1e5,
        "depth_peak_bytes": 2e5,
        "delay_ns": 8e5,
        "utilisation": None,
        "over_ns": S,
        "over_byte_s": 1e5,
        "rate_bps": 10**9,
        "flows": [flow],
        "flows_total": 1,
        "jobs": ["llm"],
        "links": [],
        "text": "two flows collide",
        "detected_by": "BOTH",
        "ce_share": 0.125,
        "dscp": 26,
        **fields,
    }


def alert(update=0, **fields):
    evidence = {"topic": "fabric.link-health", "key": "k", "at_ns": T, "text": "24 paths dead"}
    return {
        "alert_id": f"LINK_DOWN:{LINK}:{T}",
        "subject": LINK,
        "kind": "LINK_DOWN",
        "state": "RAISED",
        "severity": "CRITICAL",
        "shard": "s0",
        "update": update,
        "raised_ns": T,
        "updated_ns": T,
        "cleared_ns": None,
        "text": "leaf1 to spine1 is DOWN",
        "links": [LINK],
        "nics": [],
        "jobs": [],
        "grouped": [],
        "evidence": [evidence],
        **fields,
    }


def flows(*ids, **fields):
    return {
        "host": "h1",
        "boot": "b",
        "report": 7,
        "shard": "s0",
        "system_ns": 5,
        "whole": True,
        "flows": [
            {
                "flow_id": each,
                "state": "OPEN",
                "nic": "h1/eth1",
                "peer": "h2/eth1",
                "source_address": "10.0.0.1",
                "peer_address": "10.0.0.2",
                "source_port": 50_000,
                "peer_port": 4791,
                "protocol": "ROCE",
                "links": [LINK],
                "job": "llm",
                "tenant": None,
                "bytes_total": 10,
                "interval_ns": S,
                "bytes": 10,
                "rate_bps": 80.0,
                "rtt_ns": 9_000,
                "retransmits": None,
                "busy_share": 0.5,
            }
            for each in ids
        ],
        **fields,
    }


def paths(since_ns=T, traced_ns=T, hops=(LINK,), **fields):
    return {
        "nic": "h1/eth1",
        "peer": "h2/eth1",
        "shard": "s0",
        "run": 1,
        "traced_ns": traced_ns,
        "paths": [
            {
                "path": 40_000,
                "leg": "REQUEST",
                "links": list(hops),
                "found": "TRACED",
                "complete": True,
                "since_ns": since_ns,
                "changes": 0,
            }
        ],
        **fields,
    }


def decision(seq=0, **fields):
    return {
        "decision_id": f"s0/1/{seq}",
        "shard": "s0",
        "epoch": 1,
        "seq": seq,
        "at_ns": T,
        "host": "h1",
        "action": "REROUTE",
        "flow_id": "h1/b/qp:eth1:1:1",
        "from_path": 50_000,
        "to_path": 50_001,
        "expires_at_ns": T + S,
        "reason": reason_record("leaf1:swp3<>spine1:swp1/1"),
        "config_version": 3,
        "signature": b"",
        "text": "away from leaf1 to spine1",
        **fields,
    }


def action(outcome="APPLIED", **fields):
    return {
        "host": "h1",
        "decision_id": "s0/1/0",
        "shard": "s0",
        "epoch": 1,
        "seq": 0,
        "at_ns": T + 1,
        "flow_id": "h1/b/qp:eth1:1:1",
        "action": "REROUTE",
        "outcome": outcome,
        "from_path": 50_000,
        "to_path": 50_001,
        "took_ns": 1_000,
        "config_version": 3,
        **fields,
    }


def audited(**fields):
    return {
        "run": "r1",
        "host": "h1",
        "shard": "s0",
        "sku": "h100",
        "check": "backend.mtu",
        "category": "BACKEND",
        "title": "RDMA interfaces have the same MTU",
        "status": "FAILED",
        "severity": "ERROR",
        "action": "MONITOR",
        "remedy": "ip link set dev INTERFACE mtu MTU",
        "text": "eth1: 1500, others 9000",
        "checked_ns": T,
        "took_ns": 1_000,
        "checks": 41,
        "findings": [
            {"subject": "eth0", "status": "PASSED", "text": "9000"},
            {"subject": "eth1", "status": "FAILED", "text": "1500"},
        ],
        "facts": [
            {"name": "kernel", "subject": "", "text": "6.8", "number": None},
            {"name": "mtu_bytes", "subject": "eth1", "text": "1500", "number": 1500.0},
        ],
        **fields,
    }


def diagnosis(number=3, **fields):
    evidence = make_part(
        "Diagnosis", "DiagnosisEvidence", topic="fabric.delays", subject="h1/e0>h2/e0", quantity="delay_ns",
        number=94e3, expected=4e3, text="h1/e0 to h2/e0 saw 94 us, others 4 us",
    )  # fmt: skip
    splits = [
        make_part("Diagnosis", "RankTime", rank=rank, host="h1", network_late_ns=S) for rank in range(2)
    ]
    flows = [make_part("Diagnosis", "JobFlow", nic="h1/e0", peer=f"h{n}/e0", paths=1) for n in range(300)]
    return make(
        "Diagnosis", job="llm", number=number, begin_ns=T, end_ns=T + 5 * S, since_ns=T, confidence=0.5,
        text="one flow is slow", evidence=[evidence], time_splits=splits, flows=flows,
        **{"verdict": "SLOW_FLOW", **fields},
    )  # fmt: skip


def collectives(batch=0, **fields):
    communicator = make_part("CollectiveBatch", "Communicator", id="c0", rank=1, ranks=4)
    summary = make_part(
        "CollectiveBatch", "CollectiveSummary", function="ALL_REDUCE", algorithm="RING", protocol="LL",
        first_seq=7, last_seq=9, count=3, bytes=300, busy_ns=30, network_late_ns=11,
    )  # fmt: skip
    return make(
        "CollectiveBatch", job="llm", host="h1", boot="b", process="7-1", batch=batch, source="MPI",
        begin_ns=T, end_ns=T + S, **{"communicators": [communicator], "summaries": [summary], **fields},
    )  # fmt: skip


def message_of(topic, record, append_ns=T):
    return Message(append_ns, topic, 0, 0, "k", None, record)


@pytest.fixture
def insert(shared_server, client):
    """Inserts records of a topic as the sink does, one batch per call; the first at T."""
    settings = HistorySinkSettings(
        url=shared_server.url, password_file=shared_server.directory / "write.token"
    )
    writer = Writer(settings)
    count = 0

    def put(topic, *records):
        nonlocal count
        count += 1
        # through the codec, so that defaults are filled in
        messages = [
            message_of(
                topic.name, codec.decode(codec.encode(topic.record, each), topic.record), T + count * S
            )
            for each in records
        ]
        for table, block in rows.rows_of(topic.name, messages).items():
            writer.insert(table, block, f"{topic.name}/{count}")

    yield put
    writer.close()


def ask(client, sql):
    return client.query(sql).result_rows


def test_each_table_keeps_the_fields_of_its_record():
    def names(schema):
        return {field["name"] for field in schema["fields"]}

    def items(record, name):
        schema = codec.raw_schema(record)
        return names(next(f for f in schema["fields"] if f["name"] == name)["type"]["items"])

    def columns(table):
        return set(tables.TABLES[table].column_names)

    renamed = {"since_ns", "evidence_source", "evidence_offset", "classes"}
    assert names(codec.raw_schema("LinkHealth")) - renamed <= columns(tables.LINK_HEALTH)
    assert items("LinkQueues", "links") - {"slot", "depth_bytes", "ce_slot", "ce"} <= columns(
        tables.LINK_QUEUES
    )
    renamed = {"opened_ns", "flows", "candidates"}
    assert names(codec.raw_schema("ContentionWindow")) - renamed <= columns(tables.CONTENTION)
    assert names(codec.raw_schema("Alert")) - {"raised_ns", "evidence"} <= columns(tables.ALERTS)
    assert items("FlowReports", "flows") <= columns(tables.FLOWS)
    assert items("PathMaps", "paths") | {"nic", "peer", "traced_ns"} <= columns(tables.PATHS)
    decided = names(codec.raw_schema("Decision")) - {"at_ns", "reason", "signature"}
    assert decided | {"reason_kind", "reason_subject", "reason_seq", "reason_window_id"} <= columns(
        tables.DECISIONS
    )
    assert names(codec.raw_schema("ActionReport")) - {"at_ns"} <= columns(tables.ACTIONS)
    renamed = {"checked_ns", "findings", "facts"}
    assert names(codec.raw_schema("AuditResult")) - renamed <= columns(tables.AUDIT)
    arrays = {f"finding_{name}" for name in items("AuditResult", "findings")}
    assert arrays | {f"fact_{name}" for name in items("AuditResult", "facts")} <= columns(tables.AUDIT)
    parts = {"begin_ns", "evidence", "alternatives", "time_splits", "flows"}
    assert names(codec.raw_schema("Diagnosis")) - parts <= columns(tables.DIAGNOSES)
    assert items("Diagnosis", "time_splits") <= columns(tables.RANK_TIMES)
    assert items("Diagnosis", "flows") <= columns(tables.JOB_FLOWS)
    assert items("CollectiveBatch", "summaries") - {"communicator"} <= columns(tables.COLLECTIVES)
    assert items("CollectiveBatch", "counters") <= columns(tables.JOB_NICS)


def test_a_links_state_is_a_row_and_a_repeated_record_overwrites_it(insert, client):
    insert(topics.LINK_HEALTH, health(1), health(1, paths_dead=9))
    insert(topics.LINK_HEALTH, health(1, paths_dead=12), health(2, state="UP", before="DOWN", since_ns=T + S))
    got = ask(
        client,
        "SELECT seq, toString(state), paths_dead, toUnixTimestamp64Nano(since), links, flap_ns "
        "FROM fabrictime.link_health FINAL ORDER BY seq",
    )
    assert got == [(1, "DOWN", 12, T, [LINK], [T]), (2, "UP", 0, T + S, [LINK], [T])]


def test_the_losses_of_a_link_are_kept_by_class(insert, client):
    rate = {"loss_rate_low": 0.0, "loss_rate_high": 1.0}
    classes = [
        {"dscp": 0, "loss_rate": 0.0, "is_lossy": False, **rate},
        {"dscp": 26, "loss_rate": 0.5, "is_lossy": True, **rate},
    ]
    insert(topics.LINK_HEALTH, health(1, state="GREY", loss_rate=0.5, classes=classes))
    got = ask(client, "SELECT class_dscp, class_loss_rate, class_is_lossy FROM fabrictime.link_health")
    assert got == [([0, 26], [0.0, 0.5], [0, 1])]


def test_queues_are_rows_by_link_and_window_and_a_replay_duplicates_none(insert, client):
    other = "spine1:swp1>leaf1:swp3"
    for _ in range(2):
        insert(topics.QUEUES, queues(LINK, other))
    got = ask(
        client,
        "SELECT link, depth_mean_bytes, depth_max_bytes, utilisation, utilisation_bound, from_flows, "
        "toUnixTimestamp64Nano(window_end) FROM fabrictime.link_queues FINAL ORDER BY link",
    )
    assert got == [(each, 50_000.0, 90_000.0, 0.75, None, 0, T + S) for each in (LINK, other)]


def test_contention_and_alerts_show_their_last_update_after_any_replay(insert, client):
    closed = {"state": "CLOSED", "closed_ns": T + S}
    cleared = {"state": "CLEARED", "cleared_ns": T + S}
    insert(topics.CONTENTION, contention(0), contention(1), contention(2, **closed))
    insert(topics.CONTENTION, contention(0), contention(1))
    insert(topics.ALERTS, alert(0), alert(1, **cleared))
    insert(topics.ALERTS, alert(0))
    got = ask(
        client,
        "SELECT state, update, closed_ns, flow_nic, flow_job, flow_share, jobs "
        "FROM fabrictime.contention FINAL",
    )
    assert got == [("CLOSED", 2, T + S, ["h1/eth1"], [""], [0.5], ["llm"])]
    got = ask(
        client,
        "SELECT state, severity, cleared_ns, evidence_text, toUnixTimestamp64Nano(raised) "
        "FROM fabrictime.alerts FINAL",
    )
    assert got == [("CLEARED", "CRITICAL", T + S, ["24 paths dead"], T)]


def test_flows_are_rows_by_report_with_job_and_links(insert, client):
    insert(topics.FLOWS, flows("h1/b/sock:1", "h1/b/sock:2"), flows("h1/b/sock:1", report=8))
    got = ask(
        client,
        "SELECT flow_id, report, job, tenant, links, rtt_ns, retransmits, rate_bps "
        "FROM fabrictime.flows FINAL ORDER BY flow_id, report",
    )
    assert [row[:2] for row in got] == [("h1/b/sock:1", 7), ("h1/b/sock:1", 8), ("h1/b/sock:2", 7)]
    assert got[0][2:] == ("llm", None, [LINK], 9_000, None, 80.0)


def test_a_changed_path_keeps_both_routes_and_the_newest_has_the_latest_trace(insert, client):
    other = "leaf1:swp4>spine2:swp1"
    insert(topics.PATHS, paths())
    insert(topics.PATHS, paths(traced_ns=T + S))
    insert(topics.PATHS, paths(since_ns=T + 2 * S, traced_ns=T + 2 * S, hops=(other,)))
    got = ask(client, "SELECT links, since_ns, traced_ns FROM fabrictime.paths FINAL ORDER BY since_ns")
    assert got == [([LINK], T, T + S), ([other], T + 2 * S, T + 2 * S)]


@pytest.mark.parametrize(
    ("topic", "record", "reason"),
    [
        (topics.LINK_HEALTH, health(since_ns=5), "since_ns: 5, expected a time"),
        (topics.QUEUES, queues(LINK, LINK), "a link stands there twice"),
        (topics.QUEUES, queues(LINK, window_start_ns=5), "window_start_ns: 5"),
        (topics.CONTENTION, contention(opened_ns=-1), "opened_ns: -1"),
        (topics.ALERTS, alert(raised_ns=2**62 * 2 - 1), "raised_ns"),
        (topics.AUDIT, audited(checked_ns=5), "checked_ns: 5, expected a time"),
        (topics.DIAGNOSES, diagnosis() | {"begin_ns": 5}, "begin_ns: 5, expected a time"),
        (topics.COLLECTIVES, collectives() | {"begin_ns": -1}, "begin_ns: -1"),
        (topics.COLLECTIVES, collectives(communicators=[]), "a communicator is not among"),
        (topics.FLOWS, flows("a", "a"), "a flow stands there twice"),
        (topics.PATHS, paths(paths=2 * paths()["paths"]), "a path and leg stands there twice"),
    ],
)
def test_a_record_that_no_row_can_store_is_refused_with_its_reason(topic, record, reason):
    with pytest.raises(BadRecord, match=reason):
        rows.rows_of(topic.name, [message_of(topic.name, record)])


def test_empty_records_and_tombstones_make_no_row():
    for topic, record in (
        (topics.QUEUES, queues()),
        (topics.QUEUES, queues(LINK, slot_ns=10**7, slots=5)),
        (topics.FLOWS, flows()),
        (topics.PATHS, paths(paths=[])),
        (topics.LINK_HEALTH, None),
        (topics.ALERTS, None),
        (topics.CONTENTION, None),
        (topics.AUDIT, None),
        (topics.DIAGNOSES, None),
        (topics.COLLECTIVES, None),
        (topics.COLLECTIVES, collectives(summaries=[])),
    ):
        assert rows.rows_of(topic.name, [message_of(topic.name, record)]) == {}


def test_an_audits_result_is_a_row_and_a_repeated_one_overwrites_it(insert, client):
    for _ in range(2):
        insert(topics.AUDIT, audited(), audited(host="h2", status="PASSED", findings=[], facts=[]))
    got = ask(
        client,
        "SELECT host, status, toUnixTimestamp64Nano(checked), finding_subject, finding_status, finding_text, "
        "fact_name, fact_subject, fact_text, fact_number FROM fabrictime.audit FINAL ORDER BY host",
    )
    findings = ["eth0", "eth1"], ["PASSED", "FAILED"], ["9000", "1500"]
    facts = ["kernel", "mtu_bytes"], ["", "eth1"], ["6.8", "1500"], [None, 1500.0]
    assert got == [("h1", "FAILED", T, *findings, *facts), ("h2", "PASSED", T, *7 * [[]])]


def test_a_decision_and_each_of_its_outcomes_is_a_row(insert, client):
    for _ in range(2):
        insert(topics.DECISIONS, decision(0), decision(1, to_path=None))
        insert(topics.ACTIONS, action(), action("DUPLICATE"))
    got = ask(
        client,
        "SELECT decision_id, host, action, flow_id, from_path, to_path, reason_kind, reason_subject, "
        "reason_seq, toUnixTimestamp64Nano(decided) FROM fabrictime.decisions FINAL ORDER BY seq",
    )
    flow, cable = "h1/b/qp:eth1:1:1", "leaf1:swp3<>spine1:swp1"
    assert got == [
        ("s0/1/0", "h1", "REROUTE", flow, 50_000, 50_001, "DOWN", cable, 1, T),
        ("s0/1/1", "h1", "REROUTE", flow, 50_000, None, "DOWN", cable, 1, T),
    ]
    got = ask(client, "SELECT decision_id, outcome, took_ns FROM fabrictime.actions FINAL ORDER BY outcome")
    assert got == [("s0/1/0", "APPLIED", 1_000), ("s0/1/0", "DUPLICATE", 1_000)]


def test_a_diagnosis_is_a_row_with_its_ranks_and_up_to_256_flows(insert, client):
    for _ in range(2):
        insert(topics.DIAGNOSES, diagnosis(), diagnosis(4, verdict="HEALTHY") | {"begin_ns": T + 5 * S})
    got = ask(
        client,
        "SELECT number, verdict, evidence_text, evidence_number, toUnixTimestamp64Nano(began) "
        "FROM fabrictime.diagnoses FINAL ORDER BY number",
    )
    text = ["h1/e0 to h2/e0 saw 94 us, others 4 us"]
    assert got == [(3, "SLOW_FLOW", text, [94e3], T), (4, "HEALTHY", text, [94e3], T + 5 * S)]
    got = ask(
        client, "SELECT number, rank, network_late_ns FROM fabrictime.rank_times FINAL ORDER BY number, rank"
    )
    assert got == [(3, 0, S), (3, 1, S), (4, 0, S), (4, 1, S)]
    assert ask(client, "SELECT count() FROM fabrictime.job_flows FINAL") == [(512,)]


def test_collective_summaries_are_rows_and_a_replay_duplicates_none(insert, client):
    for _ in range(2):
        insert(topics.COLLECTIVES, collectives(), collectives(1) | {"begin_ns": T + S})
    got = ask(
        client,
        "SELECT batch, communicator_id, rank, ranks_total, function, count, network_late_ns, flush_ns "
        "FROM fabrictime.collectives FINAL ORDER BY batch",
    )
    assert got == [(batch, "c0", 1, 4, "ALL_REDUCE", 3, 11, None) for batch in range(2)]


def test_queue_pairs_and_counters_are_a_row_per_nic_also_without_operations(insert, client):
    pair = make_part("CollectiveBatch", "QueuePairDelay", nic="h1/r0", count=2, mean_ns=30, p99_ns=40)
    counter = make_part("CollectiveBatch", "NicCounter", nic="h1/r0", retransmits=3)
    record = collectives(summaries=[], queue_pairs=[pair, pair], counters=[counter])
    for _ in range(2):
        insert(topics.COLLECTIVES, record)
    got = ask(
        client,
        "SELECT job, nic, queue_pairs, chunks, mean_ns, p99_ns, retransmits, cnp_sent "
        "FROM fabrictime.job_nics FINAL",
    )
    assert got == [("llm", "h1/r0", 2, 4, 30, 40, 3, None)]


def test_clock_fits_of_each_shard_are_rows():
    messages = []
    for offset, shard in enumerate(("pod1", "pod2", "pod3")):
        window = {"window": T // S, "window_start_ns": T, "window_end_ns": T + S, "parts": 1}
        record = make("ClockFits", shard=shard, source="fabric.probes/0", **window)
        value = codec.encode("ClockFits", record)
        message = Message(T + S, topics.CLOCK_FITS.name, 0, offset, shard, value)
        message.decoded(topics.CLOCK_FITS)
        messages.append(message)
    block = rows.rows_of(topics.CLOCK_FITS.name, messages)[tables.PIPELINE]
    assert block.column("shard").to_pylist() == ["pod1", "pod2", "pod3"]
