"""Records of the RDMA prober: announcement, peers on the same network, and batches as columns."""

from __future__ import annotations

from typing import Any

import pytest

from producers.probe.rdma.records import PORT, columns_of, nic_record, peers_of
from producers.settings import NicSettings
from schemas import codec
from tests.records import make, make_part

GID = "fe80" + "0" * 28
NIC = NicSettings(host="h1", device="mlx5_0", address="10.0.0.1")
READY: dict[str, Any] = {
    "device": "mlx5_0", "port": 1, "gid": GID, "kind": "ROCE_V2", "lid": 0, "path_bits": 0,
    "speed_bps": 10**11, "numbers": [17, 18], "paths": [50_000, 50_001], "sure": True, "hardware": True,
    "tick_ns": 1, "refused": [],
}  # fmt: skip


def announced(**changes: Any) -> Any:
    record = nic_record(
        NIC,
        {**READY, **changes},
        run=3,
        since_ns=1,
        announced_ns=2,
        stamp_error_ns=4,  # type: ignore[typeddict-item]
    )
    return codec.decode(codec.encode("Nic", record), "Nic")


def test_an_announcement_names_clock_stamp_and_queue_pairs() -> None:
    record = announced()
    assert (record["nic"], record["clock"], record["stamp"]) == ("h1/mlx5_0", "h1/mlx5_0", "HARDWARE")
    assert (record["probe_port"], record["path_ports"]) == (PORT, [50_000, 50_001])
    assert (record["ud"]["gid"], record["ud"]["queue_pairs"]) == (GID, [17, 18])
    software = announced(hardware=False, sure=False)
    assert (software["clock"], software["stamp"]) == ("h1/system", "USER")
    assert software["capabilities"] == ["probe.ud", "probe.ud.paths-unsure"]


def test_infiniband_has_no_path_ports() -> None:
    assert announced(kind="INFINIBAND")["path_ports"] == []


@pytest.mark.parametrize(
    "ud",
    [None, {"kind": "INFINIBAND"}, {"queue_pairs": []}, {"gid": "FE80"}, {"gid": "x" * 32}],
)
def test_nics_that_cannot_be_probed_are_no_peers(ud: dict[str, Any] | None) -> None:
    whole = {"kind": "ROCE_V2", "gid": GID, "lid": 5, "path_bits": 1, "queue_pairs": [17]}
    good = make("Nic", nic="b/m", ud=make_part("Nic", "UdAddress", **whole))
    bad = make("Nic", nic="c/m", ud=None if ud is None else make_part("Nic", "UdAddress", **{**whole, **ud}))
    assert peers_of([good, bad], "ROCE_V2") == {"b/m": ("b/m", GID, 5, 1, (17,))}


def test_a_batch_becomes_columns_in_the_order_of_its_groups() -> None:
    groups = [
        ["b/m", 0, 1, 0, [10, 20], [1, 2], [3, 4], [5, 6], 2, [], [1]],
        ["c/m", 1, 0, 2, [], [], [], [], 0, [], []],
        ["d/m", 1, 0, 0, [30, 40], [1, 2], [3, 4], [5, 6], 1, [0, 1], [0]],
    ]
    batch: Any = {"number": 9, "clock_ns": 5, "system_ns": 6, "groups": groups}
    columns = columns_of("a/m", 3, batch, 26)
    assert (columns.nic, columns.run, columns.batch, columns.peers) == ("a/m", 3, 9, ["b/m", "c/m", "d/m"])
    assert columns.start.tolist() == [0, 2, 2, 4]
    assert (columns.lost.tolist(), columns.no_t3.tolist()) == ([1, 0, 0], [0, 2, 0])
    assert (columns.dscp.tolist(), columns.ecn.tolist()) == ([26] * 3, [2, 0, 1])
    assert (columns.forward_ce.tolist(), columns.reverse_ce.tolist()) == ([2, 3], [1, 2])
    samples = (columns.sent, columns.forward, columns.turnaround, columns.reverse)
    assert [each.tolist() for each in samples] == [[10, 20, 30, 40], [1, 2] * 2, [3, 4] * 2, [5, 6] * 2]
    assert columns_of("a/m", 3, {**batch, "groups": []}).start.tolist() == [0]
