"""`fabrictime alert`: notes are published, merged, shown, and refused where they make no sense."""

import json
import re
import time

import pytest
from typer.testing import CliRunner

from fabrictime.commands.alert.notes import AlertNotes
from fabrictime.commands.cli import app
from tests.actuators.notify.alerts import alert
from tests.embedded_log import EmbeddedLog

S = 1_000_000_000


@pytest.fixture(name="log")
def log_fixture(tmp_path):
    with EmbeddedLog(tmp_path / "log", partitions=2) as log:
        yield log


def run(log, *arguments, code=0):
    done = CliRunner().invoke(app, ["alert", *arguments, "--log", log.bootstrap])
    assert done.exit_code == code, done.output
    return done.output


def put(log, record):
    log.put("fabric.alerts", record["alert_id"], record)


def test_notes_are_written_merged_listed_and_ended(log):
    record = alert("h3/eth0", nics=["h3/eth0"], raised_ns=time.time_ns())
    put(log, record)
    put(log, alert("h4", state="CLEARED"))
    run(log, "ack", "h3", "--owner", "ana", "-m", "new [optics] ordered")
    run(log, "silence", record["alert_id"], "--until", "+2h")
    run(log, "comment", "h3/eth0", "the vendor comes")
    run(log, "maintenance", "host", "h3*", "--for", "1h")
    [row] = json.loads(run(log, "list", "--json"))["alerts"]
    assert (row["acknowledged"], row["owner"]) == (True, "ana")
    assert row["silent_until_ns"] > time.time_ns() + 7000 * S, "the silence that ends last"
    assert [comment["text"] for comment in row["comments"]] == ["new [optics] ordered", "the vendor comes"]
    assert re.search(r"acknowledged, silenced, owner ana +\S+: the vendor comes", run(log, "list"))

    run(log, "end", "h3/eth0", "host:h3*")
    [row] = json.loads(run(log, "list", "--json"))["alerts"]
    assert (row["acknowledged"], row["silent_until_ns"], row["owner"]) == (False, None, "ana")
    assert "h3/eth0: has no silence" in run(log, "end", "h3/eth0", code=2)


def test_a_window_of_a_rack_silences_only_alerts_that_lie_in_it_entirely(log):
    for host, rack in (("h1", "r1"), ("h2", "r2")):
        nic = {"nic": f"{host}/eth0", "rack": rack}
        log.put("fabric.inventory", f"{host}/eth0", _nic(**nic))
    now_ns = time.time_ns()
    put(log, alert("h1/eth0", nics=["h1/eth0"], raised_ns=now_ns))
    put(log, alert("shard", nics=["h1/eth0", "h2/eth0"], raised_ns=now_ns, kind="UNMEASURED"))
    run(log, "maintenance", "rack", "r1", "--for", "1h")
    rows = json.loads(run(log, "list", "--json"))["alerts"]
    assert {row["subject"]: row["silent_until_ns"] is not None for row in rows} == {
        "h1/eth0": True,
        "shard": False,
    }


def _nic(**fields):
    from tests.records import make

    return make("Nic", **fields)


def test_notes_about_nothing_known_are_refused_in_one_line(log):
    put(log, alert("leaf1", raised_ns=time.time_ns()))
    put(log, alert("leaf2", raised_ns=time.time_ns()))
    assert "expected one of leaf1, leaf2" in run(log, "ack", "leaf", code=2)
    assert "expected a subject of" in run(log, "ack", "spine", code=2)
    assert "expected a time in the future" in run(log, "silence", "leaf1", "--until", "2020-01-01", code=2)
    assert "expected one of host, rack, link" in run(log, "maintenance", "pod", "x", code=2)
    assert AlertNotes(log.bootstrap).index.notes == {}
