"""The engine over real packets on loopback: what comes out is what happened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from native.core.probe import Engine, Peer, TestClock, open_sockets

MakeNic = Callable[..., Any]


def test_a_probe_has_four_stamps_in_order_on_every_path(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", paths=3), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    a.start()
    b.start()
    a.until(lambda: a.samples() > 600)
    for batch in a.batches:
        assert batch.nic == "a/lo"
        assert set(batch.peers) <= {"b/lo"}
        assert np.all(batch.forward > 0)
        assert np.all(batch.turnaround > 0)
        assert np.all(batch.reverse > 0)
        assert np.all(np.abs(batch.sent - batch.system_ns) < 5e9)
        assert len(batch.start) == len(batch.peers) + 1
        assert all(len(column) == len(batch.peers) for column in (batch.path, batch.lost, batch.no_t3))
    assert {int(path) for batch in a.batches for path in batch.path} == set(a.sockets.path_ports)
    assert [batch.batch for batch in a.batches] == list(range(len(a.batches)))
    assert {batch.run for batch in a.batches} == {a.engine.run_id}


def test_coded_pairs_stand_together_and_keep_their_spacing(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", spacing_ns=50_000), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    a.start()
    b.start()
    a.until(lambda: a.engine.counters()["pairs"] > 300)
    a.batches.append(a.engine.drain())
    apart = []
    for batch in a.batches:
        for g, spacing in enumerate(batch.spacing_ns):
            if spacing:
                assert spacing == 50_000
                sent = batch.sent[batch.start[g] : batch.start[g + 1]]
                assert len(sent) % 2 == 0
                apart.extend(sent[1::2] - sent[0::2])
    assert min(apart) >= 50_000 / 4
    assert max(apart) <= 50_000 * 4
    assert 30_000 < np.median(apart) < 100_000


def test_single_probes_where_no_spacing_is_set(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", spacing_ns=0), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    a.start()
    b.start()
    a.until(lambda: a.samples() > 100)
    assert {int(s) for batch in a.batches for s in batch.spacing_ns} == {0}


def test_gaps_are_exponential(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", spacing_ns=0, rate_pps=2000.0, paths=1, seed=7), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    a.start()
    b.start()
    spread: list[float] = []

    def seen() -> bool:
        # the newest second alone: a processor shared with others holds shots back for milliseconds at times
        sent = np.sort(np.concatenate([batch.sent for batch in a.batches] or [np.zeros(0, np.int64)]))
        gaps = np.diff(sent[sent > sent[-1] - 1_000_000_000]) if len(sent) else sent
        if len(gaps) < 1000:
            return False
        spread.append(float(np.quantile(gaps, 0.9) / np.median(gaps)))
        # of an exponential, the 90th percentile is log(10) / log(2) = 3.3 medians; of a metronome, one
        return 2.2 < spread[-1] < 8.0

    a.until(seen, timeout_s=60.0)


def test_singles_beside_the_pairs_cycle_through_every_path(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", paths=8, singles=3, rate_pps=2500.0, timeout_ms=2000, seed=3), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    b.start()
    a.start()
    a.until(lambda: a.samples() > 3000)
    singles: dict[int, int] = {}
    paired = 0
    for batch in a.batches:
        for path, spacing, count in zip(batch.path, batch.spacing_ns, np.diff(batch.start), strict=True):
            if spacing:
                paired += int(count)
            else:
                singles[int(path)] = singles.get(int(path), 0) + int(count)
    assert len(singles) == 8
    demoted = 2 * a.engine.counters()["pairs_demoted"]
    alone = sum(singles.values()) - demoted
    assert 1.2 < alone / (paired + demoted) < 1.8, "three singles go with two halves of a pair"
    assert max(singles.values()) - min(singles.values()) <= 20 + demoted


def test_offset_of_set_clocks_is_measured(make_nic: MakeNic) -> None:
    epoch = time.time_ns()
    clock_a = TestClock(offset_ns=-1_000_000, drift_ppb=-8_000, epoch_ns=epoch)
    clock_b = TestClock(
        offset_ns=3_000_000, drift_ppb=12_000, wander_ppb_per_sqrt_s=100, epoch_ns=epoch, seed=3
    )
    a, b = make_nic("a/lo", clock=clock_a), make_nic("b/lo", clock=clock_b)
    a.engine.set_peers([b.peer()])
    a.start()
    b.start()
    a.until(lambda: a.samples() > 1000)
    errors = []
    for batch in a.batches:
        # the moment of t1 in system time: invert the clock by one step, exact to far below a nanosecond
        for sent, forward, reverse in zip(batch.sent, batch.forward, batch.reverse, strict=True):
            system = 2 * int(sent) - clock_a.reading(int(sent))
            truth = clock_b.offset_at(system) - clock_a.offset_at(system)
            errors.append((forward - reverse) / 2 - truth)
        assert abs(batch.clock_ns - clock_a.reading(batch.system_ns)) <= 1
    assert abs(np.median(errors)) < 20_000
    assert np.sort(np.abs(errors))[len(errors) // 10] < 3_000


def test_a_clock_step_shows_in_the_flush_readings(make_nic: MakeNic) -> None:
    a = make_nic("a/lo", clock=TestClock())
    before = a.engine.drain()
    a.engine.step_clock(5_000_000)
    after = a.engine.drain()
    assert abs(before.clock_ns - before.system_ns) <= 1
    assert abs(after.clock_ns - after.system_ns - 5_000_000) <= 1


def test_a_peer_that_is_not_there_is_loss_and_nothing_else(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", timeout_ms=500), make_nic("b/lo")
    a.engine.set_peers([Peer("gone/lo", b.address, 9), b.peer()])
    a.start()
    b.start()
    a.until(lambda: a.lost() > 100 and a.samples() > 100)
    lost = dict.fromkeys(("gone/lo", "b/lo"), 0)
    for batch in a.batches:
        for peer, count in zip(batch.peers, batch.lost, strict=True):
            lost[peer] += int(count)
    assert lost["b/lo"] == 0
    counters = a.engine.counters()
    assert counters["no_t3"] == 0
    assert counters["lost"] >= lost["gone/lo"]


def test_each_probe_is_answered_or_lost_once(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", timeout_ms=20), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    a.start()
    b.start()
    a.until(lambda: a.samples() > 200)
    b.stop()
    a.until(lambda: a.lost() > 200)
    b.start()  # late requests lie in its socket: answers come after the verdict
    a.until(lambda: a.engine.counters()["late"] > 0)
    answered = a.samples()
    a.until(lambda: a.samples() > answered + 200)
    a.engine.set_peers([])
    sent = -1.0
    while sent != a.engine.counters()["requests_sent"]:
        sent = a.engine.counters()["requests_sent"]
        threading.Event().wait(0.05)
    a.until(lambda: a.samples() + a.lost() + sum(int(x.no_t3.sum()) for x in a.batches) >= sent)
    threading.Event().wait(0.06)
    a.batches.append(a.engine.drain())
    no_t3 = sum(int(batch.no_t3.sum()) for batch in a.batches)
    assert a.samples() + a.lost() + no_t3 == sent


def test_rate_cap_slows_and_never_stops(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", rate_pps=20_000.0, max_pps=400.0, spacing_ns=0), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    b.start()
    start = time.monotonic()
    a.start()
    a.until(lambda: a.samples() > 300)
    took = time.monotonic() - start
    counters = a.engine.counters()
    assert counters["requests_sent"] + counters["collects_sent"] <= 400 * took * 1.1 + 64
    assert counters["capped"] > 0
    before = a.samples()
    a.until(lambda: a.samples() > before + 50)


def test_answer_cap_slows_and_never_stops(make_nic: MakeNic) -> None:
    a = make_nic("a/lo", rate_pps=3000.0, timeout_ms=3000)
    b = make_nic("b/lo", answer_max_pps=1000.0)
    a.engine.set_peers([b.peer()])
    b.start()
    start = time.monotonic()
    a.start()
    a.until(lambda: b.engine.counters()["replies_sent"] > 600)
    counters = b.engine.counters()
    answered = counters["replies_sent"] + counters["followups_sent"]
    assert answered <= 1000 * (time.monotonic() - start) * 1.1 + 64
    assert counters["answers_capped"] > 0
    a.engine.set_peers([])
    a.until(lambda: a.samples() > 600)


def test_peers_change_while_it_runs(make_nic: MakeNic) -> None:
    a, b, c = make_nic("a/lo", max_peers=2), make_nic("b/lo"), make_nic("c/lo")
    for nic in (a, b, c):
        nic.start()
    a.engine.set_peers([b.peer()])
    a.until(lambda: a.samples() > 50)
    a.engine.set_peers([c.peer()])
    a.until(lambda: any("c/lo" in batch.peers for batch in a.batches))
    a.until(lambda: a.batches[-1].peers != [] and set(a.batches[-1].peers) == {"c/lo"})
    assert [peer.nic for peer in a.engine.peers] == ["c/lo"]
    assert a.lost() == 0
    with pytest.raises(ValueError, match="expected at most 2"):
        a.engine.set_peers([b.peer("x/1"), b.peer("x/2"), b.peer("x/3")])


def test_two_runs_of_one_nic_do_not_mix(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo"), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    a.start()
    b.start()
    a.until(lambda: a.samples() > 50)
    a.stop()
    again = Engine(a.sockets, nic="a/lo", key=bytes(range(16)), rate_pps=1000.0)
    assert again.run_id != a.engine.run_id
    again.set_peers([b.peer()])
    again.run(0.2)
    assert again.counters()["samples"] > 0
    assert again.drain().batch == 0


def test_output_is_bounded_and_overflow_counted(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", rate_pps=20_000.0, max_pps=900.0), make_nic("b/lo")
    a.engine.set_peers([b.peer()])  # room for 2 s of 900 a second, and 4,096
    b.start()
    a.start()
    a.until(lambda: a.samples() > 100)
    assert a.engine.counters()["overflow_samples"] == 0


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("rate_pps", 0.0, "rate_pps 0.0: expected 0.001"),
        ("spacing_ns", -1, "spacing_ns -1: expected 0"),
        ("key", b"short", "fleet key: 5 bytes, expected 16 or 32"),
        ("timeout_ms", 0, "timeout_ms"),
    ],
)
def test_bad_settings_are_one_clear_line(setting: str, value: Any, text: str) -> None:
    sockets = open_sockets("127.0.0.1", 0, 0, 1)
    with pytest.raises(ValueError, match=text) as caught:
        Engine(sockets, **{"nic": "a/lo", "key": bytes(16), setting: value})
    assert "\n" not in str(caught.value)
    sockets.close()


def test_a_taken_port_names_address_and_port() -> None:
    sockets = open_sockets("127.0.0.1", 0, 0, 1)
    with pytest.raises(OSError, match=rf"probe socket 127\.0\.0\.1 UDP port {sockets.port}: .*in use"):
        open_sockets("127.0.0.1", sockets.port, 0, 1)
    sockets.close()
