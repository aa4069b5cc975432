"""The agents that the bench plays on the true fabric."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench._truth import LeafSpine, Traffic
from fabrictime.bench.detect.shared_fabric import EPOCH_NS, Scene, draw


@pytest.fixture(scope="module")
def scene() -> Scene:
    return draw(LeafSpine(8), Traffic(), 1, 0.5, 500)


def test_every_nic_probes_at_its_rate_and_every_sample_is_in_one_batch(scene: Scene) -> None:
    probes = scene.stamps.probes
    assert np.bincount(probes.nic) == pytest.approx([250] * 8, abs=1)
    batches = scene.batches()
    assert sum(len(batch.sent) for _, batch in batches) == len(probes.nic)
    assert [when for when, _ in batches] == sorted(when for when, _ in batches)
    for when, batch in batches:
        assert (batch.sent < when).all()
        assert (batch.sent % 8 == 0).all()
        assert batch.start[-1] == len(batch.sent)


def test_random_probes_have_exponential_gaps() -> None:
    scene = draw(LeafSpine(8), Traffic(), 1, 0.5, 1_000, even=False)
    gaps = np.diff(np.sort(scene.stamps.t1[scene.stamps.probes.nic == 0]))
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.3)


def test_the_pipeline_publishes_slots_of_the_fabric(scene: Scene) -> None:
    records = list(scene.infer())
    assert records
    assert {record["slot_ns"] for _, record in records} == {1_000_000}
    first = min(record["window_start_ns"] for _, record in records)
    assert 0 <= first - EPOCH_NS < 100_000_000


def test_utilisation_is_that_of_the_reported_flows() -> None:
    scene = draw(LeafSpine(8), Traffic(), 1, 2.3, 1_000)
    reported = scene.rates_bps()
    assert len(reported) == 2
    seconds = [record for _, record in scene.infer(flow_bps=reported) if record["slot_ns"] == 1_000_000_000]
    checked = 0
    for record in seconds:
        second = (record["window_start_ns"] - EPOCH_NS) // 1_000_000_000
        for link in record["links"] if second >= 0 else ():
            if link["from_flows"]:
                share = reported[second][link["link"]] / scene.fabric.rate_bps
                assert link["utilisation"] == pytest.approx(share, abs=1e-6)
                checked += 1
    assert checked > 10
