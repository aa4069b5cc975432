"""Traces of slow transfers: NIC, host or rank."""

from __future__ import annotations

import json

from tests.fabrictime.postmortem.job_files import explained, inspector_lines, nccl_lines, trace


def test_a_group_that_is_slower_than_like_groups_has_a_slow_nic(tmp_path):
    for rank in range(8):
        group = [rank // 2 * 2, rank // 2 * 2 + 1]
        duration_us = 9_000 if group[0] == 4 else 4_000
        parts = [(seq * 20_000, duration_us) for seq in range(10)]
        name = f"node{rank // 2}_{1000 + rank}.1764400000.pt.trace.json"
        (tmp_path / name).write_text(json.dumps(trace(rank, parts, group=group)))
    answer = explained(tmp_path)
    assert answer["verdict"] == "SLOW_NIC"
    assert answer["culprits"][0] == "host node2"


def test_a_rank_with_longer_collectives_came_early_and_has_no_slow_nic(tmp_path):
    for rank in range(16):
        times = [9_000 if rank == 11 else 5_000 + 10 * (rank + seq) for seq in range(10)]
        host = f"node{rank // 8}"
        (tmp_path / f"{host}-pid{1000 + rank}.log").write_text(inspector_lines(rank, host, times, ranks=16))
    answer = explained(tmp_path)
    assert answer["verdict"] in ("HEALTHY", "UNKNOWN"), answer["text"]


def test_half_of_the_ranks_that_end_later_but_begin_together_are_slow(tmp_path):
    for rank in range(8):
        duration_us = 9_000 if rank >= 4 else 5_000
        parts = [(seq * 20_000 + rank, duration_us) for seq in range(12)]
        name = f"node{rank // 4}_{1000 + rank}.1764400000.pt.trace.json"
        (tmp_path / name).write_text(json.dumps(trace(rank, parts)))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"][0]) == ("SLOW_NIC", "host node1")


def test_messages_of_the_inspector_show_the_rank_that_slow_pairs_share(tmp_path):
    for rank in range(8):
        lines = []
        for peer in {(rank + 1) % 8, (rank - 1) % 8}:
            duration_us = 900 if 3 in (rank, peer) else 300
            for line in inspector_lines(rank, f"node{rank // 4}", [duration_us] * 5).splitlines():
                row = json.loads(line)
                perf = row.pop("coll_perf")
                row["p2p_perf"] = {key.replace("coll", "p2p"): value for key, value in perf.items()}
                row["p2p_perf"].update(p2p="Send", p2p_peer=peer)
                lines.append(json.dumps(row))
        (tmp_path / f"node{rank // 4}-pid{1000 + rank}.log").write_text("\n".join(lines))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("SLOW_NIC", ["host node0", "rank 3"])
    logged = [line for rank in range(8) for line in nccl_lines(rank, f"node{rank // 4}", 8, 4, 4)]
    (tmp_path / "nccl.log").write_text("\n".join(logged))
    answer = explained(tmp_path)
    assert answer["culprits"][0] == "nic node0/mlx5_3"
    assert answer["formats"] == {"nccl-debug-log": 1, "nccl-inspector": 8}
