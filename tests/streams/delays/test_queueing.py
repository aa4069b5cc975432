"""Delays above the floor in short slots: the content of cells, and the completeness of records."""

from __future__ import annotations

import numpy as np
import pytest

from native.core import ClockLine, ProbeColumns
from streams.delays.queueing import (
    FAST_SETTLE_NS,
    GONE_NS,
    LATE_NS,
    LATEST_NS,
    RECENT_NS,
    SETTLE_NS,
    SourceQueueing,
)
from streams.queues.validation import validate_queueing
from streams.runtime.pipeline_constants import SUB_SLOTS, slot_ns_of
from streams.runtime.tables import Member

EPOCH_NS = 1_800_000_000 * 1_000_000_000
SLOT_NS = 250_000
PATH_NS = 5_000
MEMBERS = {nic: Member(nic, nic.partition("/")[0], "fabric", nic) for nic in ("a/eth0", "b/eth0")}
LINES = dict.fromkeys(MEMBERS, ClockLine(EPOCH_NS, 0, 0.0, 10.0))


def batch(sent, forward, *, nic="a/eth0", peer="b/eth0", flushed=EPOCH_NS, reverse_ns=PATH_NS):
    """Return one path's probes, answered at once over an idle reverse path."""
    sent, forward = np.asarray(sent, np.int64), np.asarray(forward, np.int64)
    one = np.zeros(1, np.int32)
    return ProbeColumns(
        nic=nic,
        run=1,
        batch=1,
        clock_ns=flushed,
        system_ns=flushed,
        peers=[peer],
        path=np.array([9320], np.int32),
        spacing_ns=one,
        lost=one,
        no_t3=one,
        start=np.array([0, len(sent)], np.int64),
        sent=EPOCH_NS + sent,
        forward=forward,
        turnaround=np.full(len(sent), 1_000, np.int64),
        reverse=np.full(len(sent), reverse_ns, np.int64),
    )


def published(source):
    """Return a source's one record, and {direction: [(ns after EPOCH_NS, count, mean ns)]} of its cells."""
    (record,) = source.take(MEMBERS)
    assert validate_queueing(record, EPOCH_NS)
    ends = np.cumsum(record["cells"])
    slot = np.asarray(record["slot"], np.int64)
    when = record["start_ns"] - EPOCH_NS + slot * record["slot_ns"] + record["at_ns"]
    return record, {
        int(direction): [
            (int(when[n]), int(record["count"][n]), float(record["mean_ns"][n]))
            for n in range(end - cells, end)
        ]
        for direction, cells, end in zip(record["direction"], record["cells"], ends, strict=True)
    }


def test_a_cell_has_the_send_times_and_queueing_delays_of_its_probes():
    source = SourceQueueing("fabric.probes/0", SLOT_NS)
    waited = [0, 0, 40_000, 60_000, 0]
    sent = [10_000, 90_000, 300_000, 340_000, 1_999_000]
    source.add(batch(sent, [PATH_NS + ns for ns in waited]), EPOCH_NS, 7, LINES)
    record, cells = published(source)
    assert (record["first_offset"], record["next_offset"]) == (7, 8)
    assert [cell[:2] for cell in cells[1]] == [(50_000, 2), (320_000, 2), (1_999_000, 1)]
    assert [cell[2] for cell in cells[1]] == pytest.approx([0, 50_000, 0], abs=100)
    # answers are sent when their requests arrive
    assert cells[2][1][:2] == (320_000 + PATH_NS + 50_000 + 1_000, 2)


def test_a_pair_with_unknown_clocks_uses_the_round_trip():
    source = SourceQueueing("fabric.probes/0", SLOT_NS)
    source.add(batch([0, 600_000], [PATH_NS, PATH_NS + 30_000]), EPOCH_NS, 0, {})
    record, cells = published(source)
    assert set(cells) == {3}
    assert not record["synced"]
    assert [cell[2] for cell in cells[3]] == pytest.approx([0, 30_000], abs=100)


@pytest.mark.parametrize(
    ("rate_bps", "settle_ns"), [(10_000_000_000, FAST_SETTLE_NS), (1_000_000_000, SETTLE_NS)]
)
def test_a_record_is_complete_up_to_the_slowest_active_prober(rate_bps, settle_ns):
    source = SourceQueueing("fabric.probes/0", slot_ns_of(rate_bps) // SUB_SLOTS)
    later = EPOCH_NS + 200_000_000
    source.add(batch([0], [PATH_NS], flushed=EPOCH_NS), EPOCH_NS, 0, LINES)
    other = batch([0], [PATH_NS], nic="b/eth0", peer="a/eth0", flushed=later)
    source.add(other, later, 1, LINES)
    assert source.take(MEMBERS)[0]["complete_ns"] == EPOCH_NS - settle_ns
    gone = later + GONE_NS
    other.clock_ns = other.system_ns = gone
    source.add(other, gone, 2, LINES)
    assert source.take(MEMBERS)[0]["complete_ns"] == gone - settle_ns


@pytest.mark.parametrize(
    ("sent_s", "flushed_s"), [(3600, 0), (-3600, 0), (-3600, -3600), (10**8, 10**8)], ids=str
)
def test_one_batch_of_another_time_spoils_no_record_of_the_other_nics(sent_s, flushed_s):
    source = SourceQueueing("fabric.probes/0", SLOT_NS)
    right = batch([300_000], [PATH_NS], nic="b/eth0", peer="a/eth0")
    source.add(batch([0], [PATH_NS]), EPOCH_NS, 0, LINES)
    source.add(right, EPOCH_NS, 1, LINES)
    expected = published(source)[1]
    wrong = batch([sent_s * 10**9], [PATH_NS], flushed=EPOCH_NS + flushed_s * 10**9)
    source.add(wrong, EPOCH_NS, 2, LINES)
    source.add(batch([0], [PATH_NS]), EPOCH_NS, 3, LINES)
    source.add(right, EPOCH_NS, 4, LINES)
    record, cells = published(source)
    assert cells == expected
    assert (record["first_offset"], record["next_offset"]) == (2, 5)


def test_a_prober_with_a_stepped_clock_is_followed_from_its_second_batch_on():
    source = SourceQueueing("fabric.probes/0", SLOT_NS)
    source.add(batch([0], [PATH_NS]), EPOCH_NS, 0, LINES)
    published(source)
    step_ns = 3600 * 10**9
    for offset, expected in ((1, 0), (2, 1), (3, 1)):
        stepped = batch([step_ns], [PATH_NS], flushed=EPOCH_NS + step_ns)
        source.add(stepped, EPOCH_NS, offset, LINES)
        assert len(source.take(MEMBERS)) == expected


def test_delayed_probes_are_awaited():
    source = SourceQueueing("fabric.probes/0", slot_ns_of(1_000_000_000) // SUB_SLOTS)
    delayed_ns = 70_000_000
    source.add(batch([-delayed_ns], [delayed_ns]), EPOCH_NS, 0, LINES)
    assert source.take(MEMBERS)[0]["complete_ns"] == EPOCH_NS - delayed_ns - PATH_NS - LATE_NS
    source.add(batch([-(10**9)], [10**9]), EPOCH_NS, 1, LINES)
    assert source.take(MEMBERS)[0]["complete_ns"] == EPOCH_NS - LATEST_NS, "no longer, whatever a probe takes"
    later = EPOCH_NS + RECENT_NS + 1
    source.add(batch([RECENT_NS], [PATH_NS], flushed=later), later, 2, LINES)
    assert source.take(MEMBERS)[0]["complete_ns"] == later - SETTLE_NS


@pytest.mark.parametrize("jump_s", [120, 8 * 3600, -30])
def test_a_step_of_log_time_loses_no_prober(jump_s):
    """Both probers are awaited, and the longest round trip ages, before, during and after wrong log time."""
    source, offset = SourceQueueing("fabric.probes/0", SLOT_NS), 0

    def complete_ns(at_s, wrong_s, waited_ns=0):
        nonlocal offset
        for n, nic in enumerate(("a/eth0", "b/eth0")):
            peer = "b/eth0" if nic == "a/eth0" else "a/eth0"
            flushed_ns = EPOCH_NS + at_s * 1_000_000_000 - n * 50_000_000
            found = batch(
                [at_s * 1_000_000_000], [PATH_NS + waited_ns], nic=nic, peer=peer, flushed=flushed_ns
            )
            offset += 1
            source.add(found, EPOCH_NS + (at_s + wrong_s) * 1_000_000_000 + n, offset, LINES)
        return source.take(MEMBERS)[0]["complete_ns"] - EPOCH_NS - at_s * 1_000_000_000

    usual = complete_ns(1, 0)
    assert complete_ns(2, jump_s) == usual
    assert complete_ns(3, jump_s, waited_ns=80_000_000) < usual
    assert complete_ns(4, 0, waited_ns=80_000_000) < usual
    complete_ns(6, 0)
    assert complete_ns(8, 0) == usual


def test_a_new_owner_recovers_the_floors():
    before, after = (SourceQueueing("fabric.probes/0", SLOT_NS) for _ in range(2))
    before.add(batch([0], [PATH_NS]), EPOCH_NS, 0, LINES)
    after.recover(before.take(MEMBERS))
    after.add(batch([50_000_000], [PATH_NS + 70_000]), EPOCH_NS, 1, LINES)
    _, cells = published(after)
    assert cells[1][0][2] == pytest.approx(70_000, abs=200)


def test_a_record_with_columns_that_do_not_fit_costs_its_floors_only(caplog):
    before, after = (SourceQueueing("fabric.probes/0", SLOT_NS) for _ in range(2))
    before.add(batch([0], [PATH_NS]), EPOCH_NS, 0, LINES)
    (record,) = before.take(MEMBERS)
    hostile = [{**record, "peer": record["peer"][:0]}, {**record, "nic": [len(record["nics"])]}]
    after.recover([*hostile, record])
    assert caplog.text.count("floors of a record are left out") == 2
    after.add(batch([50_000_000], [PATH_NS + 70_000]), EPOCH_NS, 1, LINES)
    _, cells = published(after)
    assert cells[1][0][2] == pytest.approx(70_000, abs=200)


@pytest.mark.parametrize(
    ("rate_bps", "slot_ns"),
    [
        (0, 10_000_000),
        (1_000_000_000, 10_000_000),
        (10_000_000_000, 1_000_000),
        (25_000_000_000, 1_000_000),
        (400_000_000_000, 250_000),
    ],
)
def test_windows_match_the_line_rate(rate_bps, slot_ns):
    assert slot_ns_of(rate_bps) == slot_ns


MS, S = 1_000_000, 1_000_000_000


def lines(at_ns, step_ns=0, bound_ns=10.0):
    """Return both clocks' models of one window; b's clock is `step_ns` ahead."""
    return {
        "a/eth0": ClockLine(EPOCH_NS + at_ns, 0, 0.0, bound_ns),
        "b/eth0": ClockLine(EPOCH_NS + at_ns, -step_ns, 0.0, bound_ns),
    }


@pytest.mark.parametrize("step_ns", [MS, -MS, 100_000, -100_000])
def test_a_clock_step_is_no_queue_before_the_models_follow_nor_after(step_ns):
    source = SourceQueueing("fabric.probes/0", SLOT_NS)
    deepest = []

    def second(k, step, known):
        sent = np.arange(k * S, k * S + S, 10 * MS)
        forward = np.full(len(sent), PATH_NS + step)
        models = lines(k * S, known)
        source.add(batch(sent, forward, reverse_ns=PATH_NS - step), EPOCH_NS + k * S, k, models)
        _, cells = published(source)
        deepest.append(max(mean for of in cells.values() for _, _, mean in of))
        return cells

    second(0, 0, 0)
    for k in (1, 2):  # stepped, and the models do not know
        assert set(second(k, step_ns, 0)) == {3}
    for k in (3, 4, 5):
        assert set(second(k, step_ns, step_ns)) == {1, 2}
    assert max(deepest) < 100


def test_a_queue_that_drains_is_no_clock_step():
    source = SourceQueueing("fabric.probes/0", SLOT_NS)
    source.add(batch([0, 10 * MS], [PATH_NS + 90_000] * 2), EPOCH_NS, 0, lines(0))
    published(source)
    source.add(batch([20 * MS, 30 * MS], [PATH_NS, PATH_NS + 90_000]), EPOCH_NS, 1, lines(0))
    _, cells = published(source)
    assert set(cells) == {1, 2}
    assert [mean for _, _, mean in cells[1]] == pytest.approx([0, 90_000], abs=100)


def test_a_floor_of_badly_known_clocks_is_dropped_once_they_are_known():
    """While clocks converge, a floor may be too low by their bound; later that is no queue."""
    source = SourceQueueing("fabric.probes/0", SLOT_NS)
    source.add(batch([0], [PATH_NS - 2_000]), EPOCH_NS, 0, lines(0, bound_ns=3_000.0))
    published(source)
    sent = np.arange(S, S + 100 * MS, 10 * MS)
    source.add(batch(sent, np.full(len(sent), PATH_NS)), EPOCH_NS, 1, lines(S, bound_ns=10.0))
    _, cells = published(source)
    assert max(abs(mean) for _, _, mean in cells[1]) < 100


def test_slots_follow_nics_that_are_announced_later():
    source = SourceQueueing("fabric.probes/0", 2_500_000)
    source.add(batch([0], [PATH_NS]), EPOCH_NS, 0, LINES)
    assert published(source)[0]["slot_ns"] == 2_500_000
    source.set_slot_ns(SLOT_NS)
    source.add(batch([300_000, 700_000], [PATH_NS, PATH_NS + 70_000]), EPOCH_NS, 1, LINES)
    record, cells = published(source)
    assert record["slot_ns"] == SLOT_NS
    assert [mean for _, _, mean in cells[1]] == pytest.approx([0, 70_000], abs=200)


def test_a_floor_of_one_delayed_probe_is_no_clock_step():
    """A queue drains one way while one grows the other way: the next probe without a queue shows it."""
    source = SourceQueueing("fabric.probes/0", SLOT_NS)
    queue_ns = 50_000
    for k, (there, back) in enumerate([(queue_ns, 0), (0, queue_ns), (0, 0), (0, queue_ns)]):
        delays = batch([k * S], [PATH_NS + there], reverse_ns=PATH_NS + back)
        source.add(delays, EPOCH_NS + (k + 1) * S, k, LINES)
        record, cells = published(source)
        assert record["synced"], k
    assert cells[2][0][2] == pytest.approx(queue_ns, abs=100)


def test_floors_of_few_delayed_probes_are_no_clock_step():
    """On busy links the lowest delay falls probe by probe, until one has met no queue."""
    source = SourceQueueing("fabric.probes/0", SLOT_NS)
    queues_ns = [90_000, 60_000, 40_000, 20_000, 5_000, 0]
    for k, queue_ns in enumerate(queues_ns):
        delays = batch([k * S], [PATH_NS + queue_ns], reverse_ns=PATH_NS + queues_ns[-k])
        source.add(delays, EPOCH_NS + (k + 1) * S, k, LINES)
        assert published(source)[0]["synced"], k
