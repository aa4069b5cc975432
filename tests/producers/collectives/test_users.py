"""Jobs of several users at one reporter: recorded under names of their own, or refused in one line each."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from producers.collectives.host import HostReporter, ReportedHost
from producers.collectives.settings import CollectiveSettings
from schemas import codec
from schemas.socket_access import owned_name

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other users")
ALICE, BOB = 65_001, 65_002
GROUP = "daemon"


class Cluster:
    """A folder that other users can enter, with the job's program, and a reporter there."""

    def __init__(self, program: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fabrictime-users-"))
        self.folder.chmod(0o711)
        self.program = self.folder / "job"
        shutil.copy(program, self.program)
        self.selector = selectors.DefaultSelector()
        self.records: list[dict] = []
        self.children: list[subprocess.Popen[str]] = []
        self.reporter: HostReporter | None = None

    def report(self, users: str) -> None:
        settings = CollectiveSettings(socket=self.folder / "run/c.sock", socket_users=users, ras="off")
        host = ReportedHost("h1", "boot", (), settings.socket, None)
        self.reporter = HostReporter(settings, host, self.selector)

    def start(
        self, user: int, job: str = "train", groups: tuple[int, ...] = (), **variables: str
    ) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [self.program, "0", "2", "00000000abcdef01", "2.30.7/v6"],
            user=user,
            group=user,
            extra_groups=groups,
            cwd="/",
            env={"FABRICTIME_COLLECTIVES": str(self.folder / "run/c.sock"), "FABRICTIME_JOB": job}
            | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        child.stdin.write("run 5 1000 64\n")
        child.stdin.flush()
        assert child.stdout.readline().strip() == "run"
        return child

    def put(self, job: str, value: bytes, acknowledged) -> None:
        self.records.append(codec.decode(value, "CollectiveBatch"))
        acknowledged()

    def until(self, condition) -> None:
        end_s = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end_s, (self.reporter.counts, self.records)
            for ready, _ in self.selector.select(0.02):
                ready.data(ready.fd)
            self.reporter.step(time.monotonic(), self.put, lambda: True)

    def jobs(self) -> set[str]:
        return {record["job"] for record in self.records if record["summaries"]}

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                stream.close()
        if self.reporter is not None:
            self.reporter.close()
        self.selector.close()
        shutil.rmtree(self.folder)


@pytest.fixture
def cluster(job_program: Path) -> Iterator[Cluster]:
    made = Cluster(job_program)
    yield made
    made.close()


def ended(child: subprocess.Popen[str]) -> str:
    child.stdin.close()
    child.wait(20)
    return child.stderr.read()


def test_jobs_of_one_name_of_several_users_are_jobs_of_their_own(cluster: Cluster) -> None:
    cluster.report("all")
    for user in (0, ALICE, BOB):
        cluster.start(user)
    cluster.start(BOB, job=f"train@{ALICE}")
    expected = {"train", f"train@{ALICE}", f"train@{BOB}", rf"train\x40{ALICE}@{BOB}"}
    cluster.until(lambda: cluster.jobs() == expected)
    assert cluster.reporter.counts.refused == 0
    assert owned_name("train", 1) == "train@daemon"
    assert owned_name("train@daemon", os.geteuid()) == r"train\x40daemon"
    assert owned_name("a@b", 1) == r"a\x40b@daemon"


def test_a_group_alone_may_be_admitted(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.report(f"group:{GROUP}")
    cluster.start(ALICE, groups=(1,))
    other = cluster.start(BOB)
    cluster.until(lambda: cluster.jobs() == {f"train@{ALICE}"})
    reason = "no access for this user: nothing is recorded (collectives.socket_users)"
    assert reason in other.stderr.readline()
    assert ended(other) == "", "it is stated once"


def test_a_user_without_access_is_stated_on_both_sides(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.report("owner")
    (cluster.folder / "run").chmod(0o711)
    (cluster.folder / "run/c.sock").chmod(0o666)  # the kernel lets it in, the reporter does not
    child = cluster.start(ALICE)
    cluster.until(lambda: cluster.reporter.counts.refused > 0)
    reason = f"user {ALICE} is not this socket's owner"
    assert reason in caplog.text
    assert reason in child.stderr.readline()
    assert not cluster.records


@pytest.mark.parametrize("trusted", [False, True])
def test_a_reporter_of_another_user_is_trusted_on_request(cluster: Cluster, trusted: bool) -> None:
    """A user that makes the socket first could read the operations of others."""
    run = cluster.folder / "run"
    run.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(run / "c.sock"))
        (run / "c.sock").chmod(0o666)
        os.seteuid(ALICE)  # the credentials that the kernel shows are those of listen()
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        listener.settimeout(20)
        variables = {"FABRICTIME_REPORTER_USER": str(ALICE)} if trusted else {}
        child = cluster.start(BOB, **variables)
        with listener.accept()[0] as connection:
            connection.settimeout(20)
            assert connection.recv(100) == (b"SEGMENT 1" if trusted else b"")
        if not trusted:
            assert f"its reporter runs as user {ALICE}, expected root, your user" in child.stderr.readline()


def test_a_folder_that_users_cannot_enter_is_named(cluster: Cluster) -> None:
    (cluster.folder / "run").mkdir(mode=0o700)
    with pytest.raises(
        PermissionError, match=r"run: mode 700, expected one that the socket's users can enter"
    ):
        cluster.report("all")


def test_an_unknown_group_is_named(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="this host has no group nobodys"):
        cluster.report("group:nobodys")
