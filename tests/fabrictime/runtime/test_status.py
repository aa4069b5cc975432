"""The state file of a running `up`, and the lock of its directory."""

import json
import os
import re
import socket

import pytest

from fabrictime.runtime import status


def test_a_directory_of_somebody_elses_is_not_closed_to_them(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    (shared / "theirs").touch()
    with pytest.raises(ValueError, match="not empty"):
        status.Lock(shared)
    assert shared.stat().st_mode & 0o777 == 0o755
    (shared / "theirs").unlink()
    status.Lock(shared).release()
    assert shared.stat().st_mode & 0o777 == 0o700


def test_status_fits_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    child = {
        "name": "prober h1/eth1",
        "pid": 4321,
        "state": "ready",
        "age_s": 12.5,
        "restarts": 0,
        "fault": None,
        "status": "7 peers, 28378 samples, 2 lost, 0 refused, throttle 0.49, 1 messages wait, 0 dropped",
    }
    status.show(
        {
            "pid": 1,
            "fleet": "fabric",
            "age_s": 13.0,
            "directory": "/d",
            "addresses": {"web": "http://127.0.0.1:8480/"},
            "children": [child],
            "missing_evidence": [],
            "written_s": 0.5,
        }
    )
    printed = capsys.readouterr().out
    assert re.search(r"process +pid +state +age s +restarts +status", printed)
    assert re.search(r"prober h1/eth1 +4321 +ready +12\.5 +0 +7 peers", printed)
    assert "0 dropped" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80


def state_of(**changes):
    ready = {"name": "log", "pid": 2, "state": "ready", "age_s": 1.0, "restarts": 0, "fault": None}
    found = {
        "pid": 1,
        "fleet": "fabric",
        "age_s": 13.0,
        "directory": "/d",
        "addresses": {},
        "children": [{**ready, "status": ""}, {**ready, "name": "links", "status": "", **changes}],
        "missing_evidence": [],
        "written_s": 0.5,
    }
    return found | {key: value for key, value in changes.items() if key in found}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, None),
        ({"fault": "h1/eth3: address 10.0.0.99 is not on this host"}, "links: h1/eth3: address 10.0.0.99"),
        ({"state": "restarting"}, "links: restarting"),
        (
            {"missing_evidence": ["no fresh probe results for 12 s (probers stopped?)"]},
            "health is not known: no fresh probe results for 12 s",
        ),
        ({"written_s": 40.0}, "`fabrictime up` (pid 1) has not reported for 40 s"),
    ],
)
def test_faults_and_missing_evidence_stand_above_the_addresses(capsys, changes, line):
    found = state_of(**changes)
    lines = status.wrong(found)
    assert len(lines) == (line is not None)
    status.show(found)
    printed = " ".join(capsys.readouterr().out.split())
    if line is not None:
        assert lines[0].startswith(line)
        assert line in printed


def test_a_state_counts_only_while_its_up_lives(tmp_path):
    with pytest.raises(ValueError, match="no `fabrictime up` is running"):
        status.read(tmp_path)
    lock = status.Lock(tmp_path)
    with pytest.raises(ValueError, match="just starting"):
        status.read(tmp_path)
    status.write(tmp_path, {"started_s": 0, "addresses": {}})
    assert status.read(tmp_path)["age_s"] > 0
    assert (tmp_path / status.STATE_FILE).stat().st_mode & 0o777 == 0o600
    lock.release()
    assert json.loads((tmp_path / status.STATE_FILE).read_text())["addresses"] == {}
    with pytest.raises(ValueError, match="no `fabrictime up` is running"):
        status.read(tmp_path)


def test_the_holder_of_a_lock_or_port_is_named(tmp_path):
    lock = status.Lock(tmp_path)
    with pytest.raises(ValueError, match=f"in use by process {os.getpid()} "):
        status.Lock(tmp_path)
    lock.release()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert f"process {os.getpid()} (" in status.port_holder(*server.getsockname())
    assert status.describe(None) == "a process that this user may not look at"
    assert status.describe(2**22 + 1) == f"process {2**22 + 1}"
