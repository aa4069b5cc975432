"""The state file of a running `up`, and the lock of its directory."""

import json
import os
import re
import shutil
import socket
import time
from dataclasses import replace

import pytest

from fabrictime.runtime import status
from fabrictime.runtime.holder import Holder, boot_s, describe
from fabrictime.state.health import Health, unknown

HEALTH = {"level": "ok", "sentence": "Nothing is wrong: 1 NIC on 1 host.", "consequence": "", "cause": ""}


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
            "health": HEALTH,
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
        "health": HEALTH,
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


def test_health_that_cannot_be_read_is_missing_evidence():
    reason = "the log at 127.0.0.1:9 does not answer"
    state = status.with_health(state_of(), unknown(reason))
    assert status.wrong(state) == [f"health is not known: {reason}"]
    assert state["health"]["sentence"] == "Health is not known now."
    measured = status.with_health(state_of(missing_evidence=["no clock window"]), unknown(reason))
    assert measured["missing_evidence"] == ["no clock window"], "up measures its age for longer"
    quiet = Health("wait", "Nothing is measured yet: no NIC has announced itself.")
    assert status.wrong(status.with_health(state_of(), quiet)) == []


def test_a_state_counts_only_while_its_up_lives(tmp_path):
    with pytest.raises(ValueError, match="no `fabrictime up` is running"):
        status.read(tmp_path)
    lock = status.Lock(tmp_path)
    with pytest.raises(ValueError, match="just starting"):
        status.read(tmp_path)
    status.write(tmp_path, {"started_s": 5, "started_boot_s": boot_s() - 7, "addresses": {}})
    assert 7 <= status.read(tmp_path)["age_s"] < 60, "the system clock was wrong at the start"
    assert (tmp_path / status.STATE_FILE).stat().st_mode & 0o777 == 0o600
    lock.release()
    assert json.loads((tmp_path / status.STATE_FILE).read_text())["addresses"] == {}
    with pytest.raises(ValueError, match="no `fabrictime up` is running"):
        status.read(tmp_path)


@pytest.mark.parametrize("text", ["[]", "null", '{"pid": 1}', '{"boot": "former", "started_s": "x"}'])
def test_a_state_of_another_version_is_named(tmp_path, text):
    lock = status.Lock(tmp_path)
    (tmp_path / status.STATE_FILE).write_text(text)
    with pytest.raises(ValueError, match=r"state\.json: of another form, expected an `up` of this version"):
        status.read(tmp_path)
    lock.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_directory_of_another_user_is_not_called_idle(tmp_path):
    directory = tmp_path / "data"
    lock = status.Lock(directory)
    for part in (tmp_path, *tmp_path.parents[:2]):
        part.chmod(0o711)
    os.seteuid(65_534)
    try:
        with pytest.raises(ValueError, match="Permission denied, expected a data directory of this user"):
            status.read(directory)
    finally:
        os.seteuid(0)
    lock.release()


def test_a_state_that_is_not_written_any_more_is_old_whatever_the_system_clock_does(tmp_path):
    lock = status.Lock(tmp_path)
    status.write(tmp_path, {"started_s": 5, "started_boot_s": boot_s(), "addresses": {}})
    hour_ahead_s = time.time() + 3600
    os.utime(tmp_path / status.STATE_FILE, (hour_ahead_s, hour_ahead_s))
    assert 0 <= status.read(tmp_path)["written_s"] < 60
    lock.release()


def test_a_removed_lock_file_lets_no_second_process_in_and_is_made_again(tmp_path):
    lock = status.Lock(tmp_path)
    assert lock.check() is None
    (tmp_path / status.LOCK_FILE).unlink()
    with pytest.raises(status.InUse, match="in use by"):
        status.Lock(tmp_path)
    assert lock.check() == f"{tmp_path}: its lock file had been removed, and was made again"
    assert lock.check() is None
    with pytest.raises(status.InUse, match=f"in use by process {os.getpid()} "):
        status.Lock(tmp_path)
    lock.release()


def test_a_removed_directory_is_made_again_unless_another_process_took_it(tmp_path):
    directory = tmp_path / "data"
    lock = status.Lock(directory)
    shutil.rmtree(directory)
    assert lock.check() == (
        f"{directory}: the data directory and its lock file had been removed, and was made again"
    )
    shutil.rmtree(directory)
    (directory / "run" / "clock").mkdir(parents=True)  # as a service does that is still running
    directory.chmod(0o755)
    assert lock.check() is not None
    shutil.rmtree(directory)
    second = status.Lock(directory)
    with pytest.raises(status.InUse, match="in use by process"):
        lock.check()
    assert not lock.is_locked
    assert second.is_locked
    second.release()


def test_a_process_of_another_host_or_container_is_not_named_by_its_pid(tmp_path):
    own = Holder.own()
    assert Holder.parse(own.dump()) == own
    assert f"process {os.getpid()} (" in own.describe()
    assert replace(own, boot="b", host="node7").describe() == "a process of host node7"
    other = replace(own, pid=1, pid_namespace=1, host="pod3").describe()
    assert other == "a process of another container (pod3) on this host"
    assert Holder.parse("4711\n") is None


def test_the_holder_of_a_lock_or_port_is_named(tmp_path):
    lock = status.Lock(tmp_path)
    with pytest.raises(ValueError, match=f"in use by process {os.getpid()} "):
        status.Lock(tmp_path)
    lock.release()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert f"process {os.getpid()} (" in status.port_holder(*server.getsockname())
    assert describe(None) == "a process that this user may not look at"
    assert describe(2**22 + 1) == f"process {2**22 + 1}"
