"""The history's client: failures in four kinds, one line each, and a new connection after a failure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.web.history_client import (
    ClickHouse,
    HistoryDown,
    HistoryEmpty,
    HistoryError,
    HistoryRefused,
    QueryFailed,
    connect_http,
    sort_error,
)

URL = "http://h:8123"


class OperationalError(Exception):
    """An error of clickhouse-connect: the server does not answer."""


def coded(code: int) -> Exception:
    error = Exception("no")
    error.code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Exception("Code: 60. DB::Exception: Table x does not exist"), HistoryEmpty),
        (coded(81), HistoryEmpty),
        (Exception("Code: 516. DB::Exception: Authentication failed"), HistoryRefused),
        (Exception("HTTPDriver for http://h returned response code 401 ()"), QueryFailed),
        (Exception("HTTPDriver: 401 Unauthorized"), HistoryRefused),
        (ConnectionRefusedError("refused"), HistoryDown),
        (OperationalError("timed out"), HistoryDown),
        (Exception("Code: 62. DB::Exception: Syntax error"), QueryFailed),
        (Exception("line\n" * 400), QueryFailed),
    ],
    ids=str,
)
def test_a_failure_has_a_kind_and_one_line(error: Exception, kind: type[HistoryError]) -> None:
    found = sort_error(error, URL)
    if "response code 401" in str(error):
        kind = HistoryRefused
    assert type(found) is kind
    assert URL in str(found)
    assert "\n" not in str(found)
    assert len(str(found)) < 400


def test_a_cause_in_the_middle_of_a_chain_counts() -> None:
    outer = ValueError("wrapped")
    outer.__cause__ = TimeoutError("late")
    assert type(sort_error(outer, URL)) is HistoryDown
    assert sort_error(HistoryEmpty("known"), URL).args == ("known",)


class Client:
    def __init__(self, fails: bool) -> None:
        self.fails, self.closed = fails, False

    def query(self, sql: str, **_: Any) -> Any:
        if self.fails:
            raise ConnectionResetError
        columns = [[1, 2]] if sql == "SELECT a" else []
        return SimpleNamespace(result_columns=columns, column_names=["a", "b"][: 1 + (not columns)])

    def close(self) -> None:
        self.closed = True


def test_the_next_query_after_a_failure_connects_again() -> None:
    made = [Client(True), Client(False)]
    waiting = iter(made)
    history = ClickHouse(lambda: next(waiting), URL, "fabrictime")
    with pytest.raises(HistoryDown):
        history.columns("SELECT a")
    assert made[0].closed
    assert history.columns("SELECT a") == [[1, 2]]
    assert history.columns("SELECT none") == [[], []], "no row is an empty column each"
    history.close()
    history.close()
    assert made[1].closed


def test_a_history_that_does_not_answer_is_logged_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = iter([*(Client(True) for _ in range(3)), *(Client(False) for _ in range(2))])
    history = ClickHouse(lambda: next(clients), URL, "fabrictime")
    caplog.set_level("INFO")
    for _ in range(3):
        with pytest.raises(HistoryDown):
            history.columns("SELECT a")
    for _ in range(2):
        history.columns("SELECT a")
    lines = [f"history at {URL} does not answer", f"history at {URL} answers again"]
    assert [record.message for record in caplog.records] == lines


def test_the_library_does_not_warn_at_each_query(caplog: pytest.LogCaptureFixture) -> None:
    history = connect_http("http://127.0.0.1:9", "reader", None, "fabrictime", 1.0, 1)
    for _ in range(2):
        with pytest.raises(HistoryDown):
            history.columns("SELECT 1")
    assert [record.name for record in caplog.records] == ["fabrictime.web.history_client"]


def test_an_unreadable_token_is_a_refusal_that_names_the_file(tmp_path: Path) -> None:
    history = connect_http(URL, "reader", tmp_path / "none.token", "fabrictime", 1.0, 1)
    with pytest.raises(HistoryRefused, match=r"none\.token cannot be read: No such file"):
        history.columns("SELECT 1")
