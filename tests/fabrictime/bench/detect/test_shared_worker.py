"""One worker on the shared fabric: it keeps up or falls behind, and what its benches count."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fabrictime.bench import Figure
from fabrictime.bench._truth import LeafSpine, Standing, Traffic
from fabrictime.bench.detect import clock_steps, shared_load, standing_queues
from fabrictime.bench.detect._shared_worker import Worker
from fabrictime.bench.detect.shared_fabric import EPOCH_NS, MS, SLOT_NS, Scene, draw
from schemas.records import ContentionKind

STANDING = Standing(LeafSpine(8).up(0, 1), 300.0 * MS, 600.0 * MS)

PIECE_NS = 6 * MS
"""Time of a slow worker for each piece of work: more than a block of 10 ms allows, less than one of 20 ms."""


@pytest.fixture(scope="module")
def scene() -> Scene:
    return draw(LeafSpine(8), Traffic(incast_every_ns=0, standing=(STANDING,)), 4, 0.8, 1_000)


def test_a_fast_worker_publishes_everything_and_a_slow_one_in_longer_slots(scene: Scene) -> None:
    fast, slow = Worker(scene, 100.0), Worker(scene, clock_ns=itertools.count(0, PIECE_NS).__next__)
    spans = []
    for worker in (fast, slow):
        blocks = [record for _, record in worker.run() if record["slots"] > 1]
        spans.append(sorted((each["window_start_ns"], each["slot_ns"] * each["slots"]) for each in blocks))
    assert set(fast.work.slots) == {1}
    assert fast.work.behind_ns < 200 * MS < slow.work.behind_ns
    assert max(slow.work.slots) > 1
    for found in spans:
        ends = [begin + length for begin, length in found]
        assert [begin for begin, _ in found][1:] == ends[:-1], "no slot is lost or solved twice"
    assert slow.work.spent_s > 0
    assert not slow.work.skipped


def test_the_share_of_slots_counts_all_but_both_ends(scene: Scene) -> None:
    share = shared_load.published_share(scene)
    assert share.value == 1.0
    assert "slots of 1 ms" in (share.note or "")


def test_a_standing_queue_is_found_with_its_kind_without_any_report(scene: Scene) -> None:
    name = scene.fabric.names()[STANDING.link]
    event = standing_queues.Event(STANDING, ContentionKind.COLLISION, name)
    watch = standing_queues.Watch(scene, None)
    for now_ns, record in Worker(scene, 100.0).run():
        watch.take(now_ns, record, 0.0)
    score = standing_queues.Score()
    score.add(scene, [event], watch)
    assert (score.found, score.missed, score.false, score.right) == (1, 0, 0, 1)
    assert 0 < score.opened_ms[0] < 250
    figures = score.figures(1_000, "without_reports")
    found = figures["standing_queue_found_1000pps_without_reports"]
    assert isinstance(found, Figure)
    assert found.value == 1.0


def test_windows_away_from_any_queue_are_false(scene: Scene) -> None:
    idle = scene.fabric.names()[int(np.flatnonzero(scene.crossed & (scene.load == 0))[0])]
    watch = standing_queues.Watch(scene, None)
    begin_ns = EPOCH_NS + standing_queues.FIRST_NS
    watch.windows["x"] = standing_queues.Published({idle}, begin_ns, begin_ns, ContentionKind.COLLISION)
    score = standing_queues.Score()
    score.add(scene, [], watch)
    assert (score.false, score.found) == (1, 0)


def test_reports_cover_a_standing_queue_and_the_other_traffic(scene: Scene) -> None:
    rng = np.random.default_rng(1)
    event = standing_queues.Event(STANDING, ContentionKind.COLLISION, scene.fabric.names()[STANDING.link])
    reports = standing_queues.Reports(scene, [event], rng)
    during = [flow for each in reports.at(EPOCH_NS + 500 * MS) for flow in each["flows"]]
    on_link = [flow for flow in during if flow["links"] == [event.link]]
    assert len(on_link) == 2
    assert sum(flow["rate_bps"] for flow in on_link) == pytest.approx(10e9)
    after = [flow for each in reports.at(EPOCH_NS + 2_000 * MS) for flow in each["flows"]]
    assert len(after) == np.count_nonzero(scene.load)


def test_the_models_of_a_stepped_clock_are_wrong_then_none_then_right() -> None:
    models = clock_steps.SteppedModels(["a", "b"], "b", 1e6)
    offsets = []
    for at_ms in (1_000, 3_100, 3_300, 4_100, 4_300):
        line = models.at(EPOCH_NS + at_ms * MS).get("b")
        offsets.append(None if line is None else line.offset_ns)
    assert offsets == [0, 0, None, None, -1_000_000]
    assert all(models.at(EPOCH_NS + at * MS)["a"].offset_ns == 0 for at in (0, 3_300, 9_000))


def test_a_false_deep_queue_counts_in_seconds(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_steps, "STEP_AT_NS", 0)
    depth = np.zeros(scene.slots.depth_bytes.shape)
    idle = int(np.flatnonzero(scene.crossed & (scene.load == 0))[0])
    depth[10:35, idle] = 60e3
    monkeypatch.setattr(clock_steps, "depths", lambda *_: (depth, depth, depth))
    assert clock_steps._deep_seconds(scene, []) == pytest.approx(25 * SLOT_NS / 1e9)
