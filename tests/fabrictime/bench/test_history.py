"""The history bench's rows and queries, on the tables of an embedded ClickHouse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.bench import Missing, history
from fabrictime.bench.history import PAIRS, PATHS, PEERS, ROWS_PER_WINDOW
from schemas import tables


@pytest.mark.parametrize("first_window", [0, 1_760_000_000])
def test_the_statement_makes_every_column_in_the_tables_order(first_window: int) -> None:
    sql = history._select(first_window, 3)
    names = tables.TABLES[tables.DELAYS].column_names
    at = [sql.index(f" AS c_{name}") for name in names]
    assert at == sorted(at)
    assert f"numbers({3 * ROWS_PER_WINDOW})" in sql
    assert f"+ {first_window} AS at" in sql


def test_a_window_has_every_path_of_every_pair_once() -> None:
    assert ROWS_PER_WINDOW == PAIRS * PATHS
    peers = {(pair // PEERS + 1 + pair % PEERS * 9) % history.NICS for pair in range(PEERS)}
    assert len(peers) == PEERS
    assert 0 not in peers, "no NIC measures itself"


def test_too_little_disk_is_the_reason_of_parts_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(command=lambda sql: None, close=lambda: None)
    server = SimpleNamespace(client=lambda: client, directory="/d")

    class Running:
        def __enter__(self) -> Any:
            return server

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(history, "running_server", Running)
    monkeypatch.setattr(history, "_insert", lambda server, quick: {"rows_per_second": 1.0})
    monkeypatch.setattr(history.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    found = history.run(lambda line: None)
    assert found["rows_per_second"] == 1.0
    assert found["heatmap_60s_1000_pairs_base_ms"] == Missing("1 GiB free in /d, expected 11 GiB")
    assert set(found) == set(history.TARGETS)
