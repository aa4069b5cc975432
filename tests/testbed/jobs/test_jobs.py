"""Jobs between hosts: iterations, moves in the middle of everything, their end, the best they can do."""

from __future__ import annotations

import itertools
import json
import re
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fabrictime.testbed.cli import app
from fabrictime.testbed.control import ControlClient, Testbed, socket_path
from fabrictime.testbed.fabric.fabric import FabricError
from fabrictime.testbed.jobs.jobs import JobSpec, parse_size
from fabrictime.testbed.jobs.traffic import FlowSpec
from fabrictime.testbed.settings import FabricSettings
from schemas.ipc import listen
from tests.waiting import wait_until

SMALL = FabricSettings(
    hosts=4, leaves=2, spines=2, host_rate_bps=40_000_000, fabric_rate_bps=20_000_000, hash_protocol=False
)
FULL = FabricSettings(
    hosts=8, leaves=2, spines=4, host_rate_bps=10_000_000, fabric_rate_bps=10_000_000, hash_protocol=False
)
WAIT_S = 30.0


def port_by_spine(testbed, source, peer, dport, protocol="tcp", ports=range(43_000, 43_200)):
    """A source port for each uplink of the sender's leaf."""
    found = {}
    for port in ports:
        found.setdefault(testbed.truth.likely_path_of(source, peer, port, dport, protocol)[1], port)
    return found


@pytest.mark.parametrize("kind", ["alltoall", "allreduce"])
def test_every_byte_of_every_iteration_arrives_once(inside, kind):
    def body():
        with Testbed(SMALL) as testbed:
            spec = JobSpec(kind, connections=2, size_bytes=80_000, iterations=4, check=True, seed=3)
            result = testbed.jobs.start(spec).wait()
            return result, testbed.jobs.plan(spec)

    result, plan = inside(body)
    assert [one.number for one in result.iterations] == [0, 1, 2, 3]
    pairs = 4 * 3 if kind == "alltoall" else 4
    assert len(result.connections) == pairs * 2
    assert result.iteration_bytes == plan.iteration_bytes
    expected = 12 * 20_000 if kind == "alltoall" else 2 * 3 * 4 * 20_000
    assert plan.iteration_bytes == expected
    assert sum(result.received_bytes) == 4 * expected
    assert result.spoilt_bytes == 0
    assert [sum(slots) for slots in result.slots] == result.received_bytes
    for before, after in itertools.pairwise(result.iterations):
        assert before.begin_ns < before.end_ns <= after.begin_ns
        assert 0 < before.slowest_ns <= before.end_ns - before.begin_ns
    ports = [one.source_port for one in result.connections]
    assert len(set(ports)) == len(ports)


def test_the_same_seed_draws_the_same_ports_and_two_jobs_share_hosts(inside):
    def body():
        with Testbed(SMALL) as testbed:
            spec = JobSpec("alltoall", size_bytes=40_000, seed=5, duration_s=60, job="a", tenant="blue")
            one = testbed.jobs.start(spec)
            other = testbed.jobs.start(replace(spec, hosts=("h1", "h4"), seed=6, job="b"))
            one.wait_iterations(3, WAIT_S)
            other.wait_iterations(3, WAIT_S)
            assert len(testbed.jobs.running()) == 2
            first = one.stop()
            other.stop()
            assert testbed.jobs.running() == []
            again = testbed.jobs.start(spec)
            second = again.stop()
            return first, second

    first, second = inside(body)
    assert [one.source_port for one in first.connections] == [one.source_port for one in second.connections]
    assert first.spec.job == "a"
    assert len(first.iterations) >= 3
    assert first.goodput_bps > 0


def test_moves_in_the_middle_lose_nothing_and_double_nothing(inside):
    def body():
        with Testbed(SMALL) as testbed:
            spec = JobSpec("alltoall", connections=2, size_bytes=400_000, duration_s=60, check=True, seed=9)
            job = testbed.jobs.start(spec)
            fresh = itertools.count(45_000)
            job.wait_iterations(1, WAIT_S)
            rounds = 4
            for done in range(rounds):  # each connection several times, the next while one is under way
                for connection in job.connections:
                    job.move(connection.number, next(fresh))
                    job.move(connection.number, next(fresh))
                job.wait_iterations(2 + done, WAIT_S)
            job.wait_iterations(job.finished + 2, WAIT_S)
            result = job.stop()
            return result, rounds

    result, rounds = inside(body)
    assert result.spoilt_bytes == 0
    assert result.lost_connections == 0
    moved = {move["connection"] for move in result.moves}
    assert moved == {one.number for one in result.connections}
    assert len(result.moves) >= rounds * len(result.connections) // 2
    for move in result.moves:
        assert move["from_port"] != move["to_port"] >= 45_000
        assert move["went_on_ns"] > move["asked_ns"]
    whole = len(result.iterations) * result.iteration_bytes
    assert whole <= sum(result.received_bytes) <= whole + result.iteration_bytes


def test_a_blackholed_connection_is_moved_at_once_and_the_iteration_ends(inside):
    def body():
        with Testbed(SMALL) as testbed:
            spec = JobSpec(
                "alltoall",
                ("h1", "h3"),
                connections=1,
                size_bytes=200_000,
                duration_s=60,
                dport=7100,
                check=True,
                slot_s=0.005,
            )
            port_of_spine = port_by_spine(testbed, "h1", "h3", 7100)
            here, there = port_of_spine
            # h1's data goes over one spine, its acknowledgements of h3's over the other.
            back = next(
                port
                for port in range(44_000, 44_200)
                if testbed.truth.likely_path_of("h1", "h3", 7100, port, "tcp")[1] == there
            )
            job = testbed.jobs.start(replace(spec, sports=(port_of_spine[here], back)))
            job.wait_iterations(2, WAIT_S)
            testbed.faults.add(f"blackhole {here}")
            before = job.finished
            stuck = threading.Event()
            while not stuck.is_set():  # until an iteration hangs
                at = job.finished
                stuck.wait(0.3)
                if job.finished == at:
                    break
            assert job.finished <= before + 1
            at = job.finished
            job.move(0, port_of_spine[there])
            job.wait_iterations(at + 3, 5.0)
            return job.stop()

    result = inside(body)
    assert result.spoilt_bytes == 0
    (move,) = result.moves
    assert move["went_on_ns"] - move["asked_ns"] < 1e9
    assert len(result.iterations) > 3


def test_a_move_onto_a_dead_path_fails_and_the_connection_goes_on(inside):
    def body():
        with Testbed(SMALL) as testbed:
            port_of_spine = port_by_spine(testbed, "h1", "h3", 7100)
            here, there = port_of_spine
            spec = JobSpec(
                "rpc", ("h1", "h3"), connections=1, size_bytes=1_000, duration_s=60, dport=7101
            )  # beside it, as a bystander
            beside = testbed.jobs.start(spec)
            job = testbed.jobs.start(
                JobSpec(
                    "incast",
                    ("h3", "h1"),
                    connections=1,
                    size_bytes=50_000,
                    duration_s=60,
                    dport=7100,
                    sports=(port_of_spine[here],),
                    check=True,
                )
            )
            job.wait_iterations(2, WAIT_S)
            testbed.faults.add(f"blackhole {there}")
            job.move(0, port_of_spine[there])
            begin = time.monotonic()
            wait_until(lambda: time.monotonic() - begin > 2.0)  # longer than a move is waited for
            job.wait_iterations(job.finished + 5, WAIT_S)
            return job.stop(), beside.stop()

    result, _ = inside(body)
    assert result.moves == []
    assert result.spoilt_bytes == 0
    assert result.lost_connections == 0


class Actuator:
    """A listener that says lines of the control protocol and keeps what owners say."""

    def __init__(self, path):
        self.received = []
        self._socket = listen(path, blocking=True)
        self._socket.settimeout(WAIT_S)
        self._connection = None

    def accept(self):
        self._connection, _ = self._socket.accept()
        self._lines = self._connection.makefile("rb")

    def ask(self, line):
        self._connection.sendall(line.encode() + b"\n")

    def receive(self, *starts):
        """The next line that begins with one of `starts`; others are kept in `received`."""
        while True:
            line = self._lines.readline().decode().rstrip("\n")
            assert line, "the owner hung up"
            self.received.append(line)
            if line.startswith(starts):
                return line.split(" ")

    def close(self):
        self._lines.close()
        self._connection.close()
        self._socket.close()


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_an_actuator_moves_and_paces_a_flow_that_keeps_its_name(inside, tmp_path, protocol):
    def body():
        reporter = listen(tmp_path / "flows.sock", blocking=True)
        reporter.settimeout(WAIT_S)
        actuator = Actuator(tmp_path / "control.sock")
        with Testbed(SMALL, tmp_path / "fabric.sock") as testbed:
            flow = testbed.traffic.start(
                FlowSpec("h1", "h3", 10_000_000, 60.0, protocol, 42_000, 7001, job="train", tenant="blue")
            )
            actuator.accept()
            lines = reporter.accept()[0].makefile("rb")
            _, key, port, verbs, host = actuator.receive("FLOW")
            assert (port, verbs, host) == ("42000", "MOVE,PACE", "h1")
            assert key.startswith("sock:")
            first = json.loads(lines.readline())
            assert first["flow"] == key
            assert first["can"] == ["MOVE", "PACE"]
            assert (first["job"], first["tenant"], first["source_port"]) == ("train", "blue", 42_000)

            actuator.ask(f"MOVE 7 {key} 42001 h1")
            assert actuator.receive("DONE", "FAILED") == ["DONE", "7", "42001", "SOCKET"]
            assert f"FLOW {key} 42001 MOVE,PACE h1" in actuator.received
            while (moved := json.loads(lines.readline()))["source_port"] != 42_001:
                continue
            assert moved["flow"] == key
            if protocol == "udp":
                assert f"sock:{moved['cookie']}" == key
                assert moved["sent_bytes"] >= first["sent_bytes"]

            taken = testbed.fabric.open_in("h1", lambda: _bound(testbed.fabric.nic("h1").address, protocol))
            actuator.ask(f"MOVE 8 {key} {taken.getsockname()[1]} h1")
            assert actuator.receive("DONE", "FAILED")[:2] == ["FAILED", "8"], "a port that another one holds"
            taken.close()
            actuator.ask("MOVE 9 sock:1 42002 h1")
            assert actuator.receive("DONE", "FAILED")[:2] == ["FAILED", "9"], "a flow that is not there"
            actuator.ask("MOVE 10 nonsense")
            assert actuator.receive("DONE", "FAILED", "ERROR")[0] == "ERROR"

            actuator.ask(f"PACE 11 {key} 1000000 h1")
            assert actuator.receive("DONE", "FAILED") == ["DONE", "11", "1000000", "PACING"]
            truth = testbed.truth
            link = next(link for link in testbed.fabric.links if link.startswith("h1:"))
            begin_s, begin = time.monotonic(), truth.links()[link].sent_bytes
            wait_until(lambda: time.monotonic() - begin_s > 1.0)
            rate = (truth.links()[link].sent_bytes - begin) * 8 / (time.monotonic() - begin_s)
            assert rate < 3_000_000, "paced to 1 Mbit/s, after at most what was queued"

            actuator.ask(f"PACE 12 {key} 0 h1")
            actuator.receive("DONE")
            result = flow.stop()
            actuator.receive("GONE")
            assert result.sport == 42_001
            actuator.close()
            reporter.close()
            return result

    result = inside(body)
    assert result.received_bytes > 0
    assert result.loss is None or result.loss < 0.05


def _bound(address, protocol):
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM)
    sock.bind((address, 0))
    return sock


def test_an_endpoint_that_loses_its_actuator_registers_all_its_flows_again(inside, tmp_path):
    def body():
        with Testbed(SMALL, tmp_path / "fabric.sock") as testbed:
            job = testbed.jobs.start(JobSpec("alltoall", connections=1, size_bytes=8_000, duration_s=60))
            keys = {one.flow for one in job.connections}
            assert len(keys) == 12
            for _ in range(2):
                actuator = Actuator(tmp_path / "control.sock")
                actuator.accept()
                received_keys = {actuator.receive("FLOW")[1] for _ in keys}
                assert received_keys == keys
                actuator.close()
                (tmp_path / "control.sock").unlink()
            job.wait_iterations(job.finished + 1, WAIT_S)
            job.stop()

    inside(body)


def test_incast_rounds_queue_at_the_last_hop_and_a_bystander_waits_in_it(inside):
    def body():
        with Testbed(SMALL.model_copy(update={"host_rate_bps": 20_000_000})) as testbed:
            rpc = JobSpec("rpc", ("h2", "h1"), connections=1, size_bytes=1_000, duration_s=60, gap_s=0.005)
            alone = testbed.jobs.start(rpc)
            alone.wait_iterations(50, WAIT_S)
            quiet = sorted(one.duration_s for one in alone.stop().iterations)
            incast = testbed.jobs.start(
                JobSpec("incast", ("h1", "h3", "h4"), connections=8, size_bytes=32_000, duration_s=60)
            )
            incast.wait_iterations(3, WAIT_S)
            beside = testbed.jobs.start(rpc)
            beside.wait_iterations(50, WAIT_S)
            crowded = sorted(one.duration_s for one in beside.stop().iterations)
            return quiet, crowded, incast.stop()

    quiet, crowded, rounds = inside(body)
    assert len(rounds.connections) == 16
    assert rounds.iteration_bytes == 16 * 32_000
    assert {one.destination for one in rounds.connections} == {"h1"}
    assert crowded[len(crowded) // 2] > 2 * quiet[len(quiet) // 2]


def test_ports_chosen_without_a_collision_load_the_links_evenly_and_beat_a_collision(inside):
    def body():
        with Testbed(FULL) as testbed:
            spec = JobSpec("alltoall", size_bytes=1_000_000, iterations=3, duration_s=60, dport=7100)
            spread = replace(spec, sports=testbed.spread_ports(spec, range(44_000, 44_400)))
            nics, best_bps = testbed.best(spec)
            before = testbed.truth.links()
            shares = [testbed.jobs.start(spread).wait().goodput_bps / best_bps]
            after = testbed.truth.links()
            # other work on the machine takes a job's processor time, never adds to its goodput
            while len(shares) < 5 and max(shares) <= 0.9:
                shares.append(testbed.jobs.start(spread).wait().goodput_bps / best_bps)
            sent_bytes = {link: after[link].sent_bytes - before[link].sent_bytes for link in after}
            return shares, nics, sent_bytes

    shares, nics, sent_bytes = inside(body)
    assert nics == [f"h{n}/eth1" for n in range(1, 9)]
    between = [
        size for link, size in sent_bytes.items() if re.match(r"leaf\d:\w+>spine|spine\d:\w+>leaf", link)
    ]
    # each of the 16 links carries 4 of the 16 transfers to the other leaf, 125 kB each, in each iteration
    assert len(between) == 16
    assert min(between) > 3 * 4 * 125_000
    assert max(between) < 1.1 * min(between)
    # one transfer more than its part on a link would take half of the rate of both
    assert 0.5 < max(shares) <= 1


def test_a_job_ends_with_its_fabric_and_at_its_time(inside):
    def body():
        with Testbed(SMALL) as testbed:
            short = testbed.jobs.start(JobSpec("alltoall", size_bytes=8_000, duration_s=0.5))
            result = short.wait()
            assert 0.5 <= result.elapsed_s < 5
            left = testbed.jobs.start(JobSpec("alltoall", size_bytes=8_000, duration_s=3600, slot_s=0))
        assert not left.running

    inside(body)


def test_a_job_that_cannot_be_is_refused_in_one_line(inside):
    def body():
        with Testbed(SMALL) as testbed:
            for spec, error_text in (
                (JobSpec("alltoall", ("h1",)), "hosts: 1"),
                (JobSpec("rpc"), "hosts: 4 of a job rpc"),
                (JobSpec("gossip"), "kind 'gossip'"),  # type: ignore[arg-type]
                (JobSpec("alltoall", ("h1", "h1")), "each once"),
                (JobSpec("alltoall", size_bytes=10), "size_bytes 10"),
                (JobSpec("alltoall", connections=0), "connections 0"),
                (JobSpec("alltoall", duration_s=float("nan")), "duration_s nan"),
                (JobSpec("alltoall", sports=(1, 2)), "sports: 2, expected 48"),
                (JobSpec("alltoall", duration_s=80_000, slot_s=0.001), "slot_s 0.001"),
            ):
                with pytest.raises(ValueError, match=error_text):
                    testbed.jobs.start(spec)
            with pytest.raises(FabricError, match="'h9'"):
                testbed.jobs.start(JobSpec("alltoall", ("h1", "h9")))
            with pytest.raises(FabricError, match="'nosuch' is not in this kernel"):
                testbed.jobs.start(JobSpec("alltoall", congestion="nosuch"))
            taken = testbed.fabric.open_in("h1", lambda: _bound(testbed.fabric.nic("h1").address, "tcp"))
            with pytest.raises(FabricError, match="Address already in use"):
                testbed.jobs.start(JobSpec("alltoall", dport=taken.getsockname()[1]))

    inside(body)


def test_a_client_of_the_socket_sees_iterations_come_and_its_job_goes_with_it(inside, tmp_path: Path):
    def body():
        path = tmp_path / "fabric.sock"
        with Testbed(SMALL, path) as testbed:
            stream = ControlClient(path).stream(
                "job", WAIT_S, kind="alltoall", hosts=["h1", "h2", "h3"], size_bytes=30_000, duration_s=60.0
            )
            started = next(stream)
            assert len(started["connections"]) == 24
            assert started["best_goodput_bps"] > 0
            while not next(stream)["iterations"]:
                continue
            stream.close()
            wait_until(lambda: testbed.jobs.running() == [])
            *_, ended = ControlClient(path).stream(
                "job", WAIT_S, kind="allreduce", size_bytes=30_000, duration_s=60.0, iterations=3
            )
            assert ended["iterations"] == 3

    inside(body)


def test_the_command_shows_iterations_and_the_share_of_the_best(inside, tmp_path: Path):
    def body():
        with Testbed(SMALL, socket_path(tmp_path)):
            run = CliRunner().invoke
            arguments = [
                "job",
                "alltoall",
                "--size",
                "40kb",
                "--for",
                "20s",
                "--iterations",
                "5",
                "--dir",
                str(tmp_path),
            ]
            shown, received = run(app, arguments), run(app, [*arguments, "--json"])
            wrong = run(app, ["job", "alltoall", "--hosts", "h1,h9", "--dir", str(tmp_path)])
            return shown.output, json.loads(received.output), wrong.output, wrong.exit_code

    shown, received, wrong, code = inside(body)
    assert "alltoall of 4 hosts over 48 connections" in shown
    assert "iteration 5: " in shown
    assert "% of the best; 0 moves" in shown
    assert [one["number"] for one in received["iterations"]] == [0, 1, 2, 3, 4]
    assert len(received["connections"]) == 48
    assert 0 < received["goodput_bps"] <= received["best_goodput_bps"]
    assert "'h9'" in wrong
    assert code == 1


@pytest.mark.parametrize(("text", "size"), [("2mb", 2_000_000), ("256KiB", 262_144), ("4096", 4096)])
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1mb", "1tb"])
def test_an_invalid_size_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_size(text)
