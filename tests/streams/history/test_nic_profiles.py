"""Rows per NIC: weighted mean, tail of the slowest queue pair, counters or none."""

from streams.history.nic_profiles import COUNTERS, nic_profiles
from tests.records import make, make_part


def pair(nic, count, mean_ns, p99_ns):
    return make_part(
        "CollectiveBatch",
        "QueuePairDelay",
        nic=nic,
        count=count,
        bytes=10 * count,
        mean_ns=mean_ns,
        p99_ns=p99_ns,
        max_ns=2 * p99_ns,
        posted=1,
    )


def test_queue_pairs_of_a_nic_are_one_row():
    counter = make_part("CollectiveBatch", "NicCounter", nic="h1/mlx5_1", cnp_received=7)
    record = make(
        "CollectiveBatch",
        queue_pairs=[pair("h1/mlx5_0", 3, 10, 20), pair("h1/mlx5_0", 1, 50, 90), pair("h1/mlx5_2", 0, 0, 0)],
        counters=[counter],
    )
    first, second, third = nic_profiles(record)
    assert (first["nic"], first["queue_pairs"], first["chunks"], first["bytes"]) == ("h1/mlx5_0", 2, 4, 40)
    assert (first["mean_ns"], first["p99_ns"], first["max_ns"], first["posted"]) == (20, 90, 180, 2)
    assert {first[name] for name in COUNTERS} == {None}
    assert (second["nic"], second["queue_pairs"], second["mean_ns"]) == ("h1/mlx5_1", 0, None)
    assert (second["cnp_received"], second["retransmits"]) == (7, None)
    assert (third["mean_ns"], third["p99_ns"]) == (None, None), "no chunk ended"


def test_a_record_without_queue_pairs_and_counters_has_no_row():
    assert nic_profiles(make("CollectiveBatch")) == []
