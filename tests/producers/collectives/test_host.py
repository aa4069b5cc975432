"""The processes of a host: real ranks, two jobs with one communicator, different versions, limits."""

from __future__ import annotations

import selectors
import time

import pytest

from producers.boot import boot_id
from producers.collectives.host import HostReporter, ReportedHost
from producers.collectives.settings import CollectiveSettings
from producers.settings import NicSettings
from schemas import codec
from tests.producers.collectives.segments import DEVICES_AT, Segment

NIC = NicSettings(host="h1", device="lo", address="127.0.0.1", shard="s0")


class Host:
    """A reporter of h1 whose records go to a list."""

    def __init__(self, folder, **settings):
        self.socket = folder / "c.sock"
        given = CollectiveSettings(socket=self.socket, **{"report_ms": 100, "heartbeat_s": 1, **settings})
        self.selector = selectors.DefaultSelector()
        host = ReportedHost("h1", boot_id(), [NIC], self.socket, folder / "clock")
        self.reporter = HostReporter(given, host, self.selector)
        self.records = []

    def put(self, job, value, acknowledged):
        self.records.append(codec.decode(value, "CollectiveBatch"))
        assert self.records[-1]["job"] == job
        acknowledged()

    def until(self, done, timeout_s=20):
        end_s = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < end_s, self.records
            for key, _ in self.selector.select(0.01):
                key.data(key.fd)
            self.reporter.step(time.monotonic(), self.put, lambda: True)

    def close(self):
        if self.selector.get_map() is not None:
            self.reporter.close()
            self.selector.close()

    def count(self, job):
        return sum(
            each["count"] for record in self.records if record["job"] == job for each in record["summaries"]
        )


@pytest.fixture
def hosts(tmp_path):
    made = []

    def start(**settings):
        made.append(Host(tmp_path, **settings))
        return made[-1]

    yield start
    for host in made:
        host.close()


def test_two_jobs_with_one_communicator_stay_apart(hosts, ranks):
    host = hosts()
    first = ranks(host.socket, job="a", version="2.28.3/v5")
    second = ranks(host.socket, job="b", version="2.31.2/v7")
    first.do("run 3 100000 4096")
    second.do("run 5 100000 4096")
    host.until(lambda: (host.count("a"), host.count("b")) == (3, 5))
    assert {(record["job"], record["version"]) for record in host.records} == {
        ("a", "2.28.3/v5"),
        ("b", "2.31.2/v7"),
    }
    communicators = {each["id"] for record in host.records for each in record["communicators"]}
    assert communicators == {"00000000abcdef01"}
    assert len({record["process"] for record in host.records}) == 2
    assert host.reporter.counts.jobs == {"a", "b"}
    first.end()
    second.kill()
    host.until(lambda: host.reporter.is_idle)
    assert sum(record["ended"] for record in host.records) == 2


def test_records_have_the_state_of_the_clock(hosts, ranks):
    host = hosts()
    rank = ranks(host.socket)
    rank.do("run 1 100000 4096", "wrong")
    host.until(lambda: host.count("train") == 1)
    (record,) = [record for record in host.records if record["summaries"]]
    assert (record["clock"], record["bound_ns"], record["events_invalid"]) == ("UNSYNCED", 0.0, 1)
    assert abs(record["end_ns"] - time.time_ns()) < 20e9
    assert record["communicators"][0]["nics"] in (["h1/lo"], ["h1/mlx5_0"])


def test_processes_are_limited(hosts, ranks):
    host = hosts(processes=1)
    first = ranks(host.socket, job="a")
    first.do("run 1 1000 1")
    host.until(lambda: host.count("a") == 1)
    second = ranks(host.socket, job="b")
    second.do("run 1 1000 1")
    host.until(lambda: host.reporter.counts.refused >= 1)
    assert host.reporter.counts.processes == 1
    first.end()
    host.until(lambda: host.count("b") == 1)


def test_a_process_connects_to_the_next_reporter(hosts, ranks):
    first = hosts()
    rank = ranks(first.socket)
    rank.do("run 2 1000 1")
    first.until(lambda: first.count("train") == 2)
    first.close()
    rank.do("run 4 1000 1")
    second = hosts()
    second.until(lambda: second.count("train") == 4)
    assert second.records[0]["batch"] == first.records[-1]["batch"] + 1


def test_nothing_is_published_while_the_queue_is_full(hosts, ranks):
    host = hosts()
    rank = ranks(host.socket)
    rank.do("run 2 1000 1")
    end_s = time.monotonic() + 1
    while time.monotonic() < end_s:
        for key, _ in host.selector.select(0.01):
            key.data(key.fd)
        host.reporter.step(time.monotonic(), host.put, lambda: False)
    assert not host.records
    rank.end()
    host.until(lambda: host.reporter.is_idle)
    assert (host.count("train"), host.records[-1]["ended"]) == (2, True)


def test_an_idle_host_waits_long(hosts):
    host = hosts()
    now_s = time.monotonic()
    assert host.reporter.step(now_s, host.put, lambda: True) >= now_s + 1
    assert host.reporter.is_idle


def test_a_segment_of_wild_content_ends_nothing(hosts, ranks):
    import socket

    host, segment = hosts(), Segment(64)
    segment.communicator(number=2**64 - 1, rank=2**24 - 1, ranks=2**24)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(host.socket))
        socket.send_fds(client, [b"SEGMENT 1"], [segment.fd])
        host.until(lambda: not host.reporter.is_idle)
        for fill in (0xFF, 0x55, 0x01):
            segment.memory[DEVICES_AT:] = bytes([fill]) * (len(segment.memory) - DEVICES_AT)
            before = len(host.records)
            host.until(lambda before=before: len(host.records) > before)
        rank = ranks(host.socket, job="good")
        rank.do("run 1 1000 1")
        host.until(lambda: host.count("good") == 1)
    segment.close()
