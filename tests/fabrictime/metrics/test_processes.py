"""An endpoint sums up all processes, and its counters survive the restart of any of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictime.metrics.processes import HostMetrics, read_socket, serve_socket
from schemas.metrics.base import Sample
from schemas.metrics.sources import Sources
from tests.examples import examples

SENT, PEERS = "fabrictime_probes_sent_total", "fabrictime_probe_peers"
ERRORS = "fabrictime_metrics_errors_total"


class Child:
    """A child process's sources behind a real socket."""

    def __init__(self, path, sent):
        self.sent, sources = sent, Sources()
        sources.add(self.samples)
        self.server = serve_socket(path, sources)

    def samples(self):
        yield Sample(SENT, self.sent)
        yield Sample(PEERS, 2)


class Host:
    """An `up` with two children of one kind of service."""

    def __init__(self, folder):
        self.paths = {name: folder / "metrics" / f"{name.replace('/', '-')}.sock" for name in ("a/1", "b/2")}
        self.rows = {
            name: {"name": name, "pid": 1, "state": "ready", "fault": None, "restarts": 0}
            for name in self.paths
        }
        self.children = {name: Child(path, 10) for name, path in self.paths.items()}
        services = dict.fromkeys(self.paths, "prober")
        self.metrics = HostMetrics(lambda: list(self.rows.values()), self.paths, services, Sources())

    def kill(self, name):
        self.children.pop(name).server.close()
        self.rows[name] |= {"pid": None, "state": "restarting"}

    def restart(self, name, sent):
        self.children[name] = Child(self.paths[name], sent)
        row = self.rows[name]
        row |= {"pid": row["restarts"] + 2, "state": "ready", "restarts": row["restarts"] + 1}

    def figures(self):
        return {(sample.name, *sample.labels): sample.value for sample in self.metrics.collect()}

    def close(self):
        self.metrics.close()
        for child in self.children.values():
            child.server.close()


@pytest.fixture
def host(tmp_path):
    made = Host(tmp_path)
    yield made
    made.close()


def test_processes_of_one_host_are_summed_up(host):
    figures = host.figures()
    assert (figures[SENT,], figures[PEERS,]) == (20, 4)
    assert figures["fabrictime_processes", "ready"] == 2
    assert figures["fabrictime_restarts_total", "prober"] == 0
    assert figures[ERRORS,] == 0


def test_counters_continue_over_a_restart_and_gauges_do_not(host):
    host.figures()
    host.kill("a/1")
    down = host.figures()
    assert (down[SENT,], down[PEERS,]) == (20, 2)
    assert down["fabrictime_processes", "not_ready"] == 1
    host.restart("a/1", sent=3)
    again = host.figures()
    assert (again[SENT,], again[PEERS,]) == (23, 4)
    assert again["fabrictime_restarts_total", "prober"] == 1


def test_a_ready_process_without_an_answer_is_an_error(host):
    host.figures()
    host.children.pop("a/1").server.close()
    assert host.figures()[ERRORS,] == 1


def test_a_child_refuses_other_commands(host):
    from schemas.control_socket import exchange
    from schemas.ipc import connect

    [answer] = exchange(connect(host.paths["a/1"], 5), "shutdown", {})
    assert not answer["ok"]
    assert read_socket(host.paths["a/1"])[0].name == SENT


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["count", "kill", "restart"]), st.integers(0, 50)), max_size=12))
def test_a_counter_never_decreases(tmp_path_factory, steps):
    host = Host(tmp_path_factory.mktemp("host"))
    try:
        before = host.figures()[SENT,]
        for step, number in steps:
            if step == "count" and "a/1" in host.children:
                host.children["a/1"].sent += number
            elif step == "kill" and "a/1" in host.children:
                host.kill("a/1")
            elif step == "restart" and "a/1" not in host.children:
                host.restart("a/1", number)
            now = host.figures()[SENT,]
            assert now >= before
            before = now
    finally:
        host.close()
