"""Sources are merged, keep their counters after their end, and fail alone."""

import gc

import pytest

from schemas.metrics.base import Detail, Sample
from schemas.metrics.sources import SOURCES, Sources, process_samples

SENT, LOST, PEERS, RATE = (
    "fabrictime_probes_sent_total",
    "fabrictime_probes_lost_total",
    "fabrictime_probe_peers",
    "fabrictime_probe_rate_ratio",
)
ERRORS = "fabrictime_metrics_errors_total"


class Prober:
    def __init__(self, sent=0, peers=1, rate=1.0):
        self.sent, self.peers, self.rate = sent, peers, rate

    def samples(self):
        yield Sample(SENT, self.sent)
        yield Sample(PEERS, self.peers)
        yield Sample(RATE, self.rate)
        yield Sample("fabrictime_nic_probes_sent_total", self.sent, ("h1/eth0",))


def collected(sources):
    return {(sample.name, *sample.labels): sample.value for sample in sources.collect()}


def test_samples_of_all_objects_are_merged_as_declared():
    sources, probers = Sources(), [Prober(5, 2, 0.5), Prober(7, 3, 1.0)]
    for prober in probers:
        sources.add(prober.samples)
    assert collected(sources) == {(SENT,): 12, (PEERS,): 5, (RATE,): 0.5, (ERRORS,): 0}


def test_series_of_nics_come_only_with_their_setting():
    sources, prober = Sources(frozenset({Detail.PER_NIC})), Prober(5)
    sources.add(prober.samples)
    assert collected(sources)["fabrictime_nic_probes_sent_total", "h1/eth0"] == 5


@pytest.mark.parametrize("ending", ["removed", "collected as garbage"])
def test_counters_of_an_object_that_ended_stay_and_its_gauges_go(ending):
    sources, prober = Sources(), Prober(5)
    sources.add(prober.samples)
    assert collected(sources)[SENT,] == 5
    if ending == "removed":
        prober.sent = 9  # since the last collection
        sources.remove(prober.samples)
    del prober
    gc.collect()
    successor = Prober(1, peers=4)
    sources.add(successor.samples)
    figures = collected(sources)
    assert figures[SENT,] == (10 if ending == "removed" else 6)
    assert figures[PEERS,] == 4


def test_a_source_that_fails_is_counted_and_hides_no_other(caplog):
    sources, prober = Sources(), Prober(5)

    def broken():
        yield Sample(LOST, 3)
        raise ValueError("engine is closed")

    sources.add(prober.samples)
    sources.add(broken)
    figures = collected(sources)
    assert (figures[SENT,], figures[ERRORS,]) == (5, 1)
    assert (LOST,) not in figures
    assert "engine is closed" in caplog.text


def test_an_undeclared_name_is_an_error():
    sources = Sources()
    sources.add(lambda: [Sample("fabrictime_undeclared", 1)])
    assert collected(sources) == {(ERRORS,): 1}


def test_a_container_that_changes_during_the_read_is_read_again():
    sources, calls = Sources(), []

    def changing():
        calls.append(None)
        if len(calls) == 1:
            raise RuntimeError("dictionary changed size during iteration")
        return [Sample(SENT, 2)]

    sources.add(changing)
    assert collected(sources) == {(SENT,): 2, (ERRORS,): 0}


def test_the_process_reports_itself():
    figures = {sample.name: sample.value for sample in process_samples()}
    assert figures["fabrictime_cpu_seconds_total"] > 0
    assert figures["fabrictime_resident_memory_bytes"] > 1e6
    assert {sample.name for sample in SOURCES.collect()} >= figures.keys()
