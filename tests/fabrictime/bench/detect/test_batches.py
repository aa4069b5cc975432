"""Batches of probes: by flush and NIC, with a group per peer and path."""

from __future__ import annotations

import numpy as np

from fabrictime.bench.detect._batches import EPOCH_NS, FLUSH_NS, batches_of


def test_batches_hold_each_probe_once_by_flush_nic_peer_and_path() -> None:
    nic, peer, path = np.array([[0, 0, 0, 1, 0], [1, 1, 1, 0, 1], [7, 7, 5, 7, 7]])
    left = np.array([2e6, 1e6, 3e6, 4e6, 60e6])
    stamps = [EPOCH_NS + (left + step).astype(np.int64) for step in (0, 1000, 1500, 2700)]
    found = batches_of(["a", "b"], (nic, peer, path), (left, left + 2700), stamps)
    assert [(when, batch.nic) for when, batch in found] == [
        (EPOCH_NS + FLUSH_NS, "a"),
        (EPOCH_NS + FLUSH_NS, "b"),
        (EPOCH_NS + 2 * FLUSH_NS, "a"),
    ]
    first = found[0][1]
    assert (first.peers, first.path.tolist(), first.start.tolist()) == (["b", "b"], [5, 7], [0, 1, 3])
    assert (first.sent - EPOCH_NS).tolist() == [3_000_000, 1_000_000, 2_000_000]
    assert (first.forward[0], first.turnaround[0], first.reverse[0]) == (1000, 500, 1200)
