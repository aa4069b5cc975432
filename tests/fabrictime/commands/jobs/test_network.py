"""`explain --folder` beside a fleet: alerts, links and contention of the job's hosts in its time."""

import json

from schemas.topics import ALERTS
from tests.fabrictime.commands.action_records import S, fabrictime, produce
from tests.fabrictime.postmortem.job_files import START_NS, call, nccl_lines, waiting, write_dumps


def alert(number, at_ns, cleared_ns, nics, text):
    return {
        "alert_id": f"fabric/{number}",
        "subject": f"{nics[0].replace('/', ':')}<>leaf1:Eth1",
        "kind": "LINK_GREY",
        "state": "RAISED" if cleared_ns is None else "CLEARED",
        "severity": "WARNING",
        "shard": "fabric",
        "update": number,
        "raised_ns": at_ns,
        "updated_ns": at_ns,
        "cleared_ns": cleared_ns,
        "text": text,
        "links": [],
        "nics": nics,
        "jobs": [],
        "grouped": [],
        "evidence": [],
    }


def hung(folder, host):
    """Write the folder of a job on two hosts in which rank 3 did not come."""
    done = [call(seq) for seq in range(1, 5)]
    write_dumps(folder, lambda rank: done if rank == 3 else [*done, waiting()])
    lines = [line for rank in range(8) for line in nccl_lines(rank, f"{host}{rank // 4}", 8, 4, 4)]
    (folder / "nccl.log").write_text("\n".join(lines))
    return str(folder)


def test_events_of_the_hosts_at_that_time_are_printed(log, tmp_path):
    alerts = (
        alert(1, START_NS - 30 * S, START_NS + 5 * S, ["h1/eth0"], "2% of packets lost"),
        alert(2, START_NS, None, ["h9/eth0"], "another host"),
        alert(3, START_NS - 9000 * S, START_NS - 8000 * S, ["h1/eth0"], "hours before"),
    )
    produce(log, *((ALERTS, record["alert_id"], record) for record in alerts))
    folder = hung(tmp_path, "h")
    answer = json.loads(fabrictime(log, "explain", "--folder", folder, "--json").output)
    assert answer["culprits"] == ["rank 3", "host h0"]
    (event,) = answer["network"]["events"]
    assert (event["kind"], event["hosts"]) == ("LINK_GREY", ["h1", "leaf1"])
    assert answer["network"]["others"] == 1
    text = fabrictime(log, "explain", "--folder", folder).output
    assert (
        "network: LINK_GREY h1:eth0<>leaf1:Eth1 since 2025-11-29 07:06:10 UTC until 2025-11-29 07:06:45"
        in text
    )
    assert "2% of packets lost" in text
    assert "hours before" not in text


def test_a_quiet_network_is_stated(log, tmp_path):
    text = fabrictime(log, "explain", "--folder", hung(tmp_path, "g")).output
    assert "no alert, no link in trouble and no contention of these hosts at that time" in text
