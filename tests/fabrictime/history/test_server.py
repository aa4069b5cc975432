"""The history server for its clients: users, protocol, one owner, and recovery after a kill."""

import base64
import http.client
import json
import threading
import time
import urllib.parse

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import ClickHouseError

ROWS = 400_000


def ask(server, query, user="reader", method="POST", headers=None, **params):
    """Return (status, headers, body) of a bare HTTP request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    auth = {"X-ClickHouse-User": user, "X-ClickHouse-Key": server.token(user)}
    body = query if method == "POST" else None
    if method == "GET":
        params["query"] = query
    try:
        connection.request(
            method,
            "/?" + urllib.parse.urlencode(params),
            body=body,
            headers=auth if headers is None else headers,
        )
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@pytest.fixture
def numbers(client):
    client.command(
        "CREATE OR REPLACE TABLE fabrictime.numbers (a Int64, s String) ENGINE = MergeTree ORDER BY a"
    )
    yield "fabrictime.numbers"
    client.command("DROP TABLE IF EXISTS fabrictime.numbers")


@pytest.mark.parametrize("compress", [True, False, "lz4", "zstd", "gzip"])
def test_clickhouse_connect_inserts_and_reads_large_results(shared_server, numbers, compress):
    client = shared_server.client(compress=compress)
    client.insert(numbers, [[i, f"x{i % 7}"] for i in range(ROWS)], column_names=["a", "s"])
    assert client.query(f"SELECT count(), sum(a) FROM {numbers}").result_rows == [
        (ROWS, ROWS * (ROWS - 1) // 2)
    ]
    assert client.query(f"SELECT a FROM {numbers} ORDER BY a").result_columns[0][-1] == ROWS - 1
    client.close()


def test_parameters_settings_and_database_reach_the_query(client):
    query = "SELECT {x:Int64} + 1, getSetting('max_threads'), currentDatabase()"
    row = client.query(query, parameters={"x": 4}, settings={"max_threads": 1}).result_rows[0]
    assert row == (5, 1, "fabrictime")
    assert client.query("SELECT getSetting('max_threads')").result_rows[0][0] != 1


def test_a_session_keeps_its_temporary_table(shared_server):
    client = shared_server.client(session_id="one")
    client.command("CREATE TEMPORARY TABLE kept (a Int64)")
    client.command("INSERT INTO kept VALUES (3)")
    assert client.command("SELECT sum(a) FROM kept") == 3
    other = shared_server.client(session_id="two")
    with pytest.raises(ClickHouseError):
        other.command("SELECT sum(a) FROM kept")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "194"),
        ({"X-ClickHouse-Key": "wrong"}, 403, "516"),
        ({"X-ClickHouse-User": "reader", "X-ClickHouse-Key": ""}, 401, "194"),
        ({"Authorization": "Basic " + base64.b64encode(b"fabrictime:wrong").decode()}, 403, "516"),
        ({"Authorization": "Basic ???"}, 403, "516"),
        ({"Authorization": "Bearer wrong"}, 403, "516"),
    ],
)
def test_without_the_token_nothing_is_answered(shared_server, headers, status, code):
    got, answered, body = ask(shared_server, "SELECT 1", headers=headers)
    assert (got, answered["X-ClickHouse-Exception-Code"]) == (status, code)
    assert body.startswith(f"Code: {code}. DB::Exception: ".encode())


def test_each_method_of_sending_the_token_works(shared_server):
    token = shared_server.token("reader")
    basic = base64.b64encode(f"reader:{token}".encode()).decode()
    for headers in (
        {"X-ClickHouse-User": "reader", "X-ClickHouse-Key": token},
        {"Authorization": f"Basic {basic}"},
        {"Authorization": f"Bearer {token}"},
    ):
        assert ask(shared_server, "SELECT 1", headers=headers)[2] == b"1\n"
    assert ask(shared_server, "SELECT 1", headers={}, password=token)[2] == b"1\n"
    status, _, body = ask(
        shared_server, "SELECT 1", headers={"X-ClickHouse-User": "fabrictime", "X-ClickHouse-Key": token}
    )
    assert (status, b"Authentication failed" in body) == (403, True)


def test_ping_needs_no_token(shared_server):
    assert clickhouse_connect.get_client(
        host="127.0.0.1", port=shared_server.port, username="reader", password=shared_server.token("reader")
    ).ping()


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO fabrictime.rejects (topic) VALUES ('x')",
        "ALTER TABLE fabrictime.delays DELETE WHERE 1",
        "DROP TABLE fabrictime.delays",
        "SET ROLE writer",
        "SELECT * FROM url('http://127.0.0.1:1/', 'CSV')",
        "SELECT * FROM remote('127.0.0.1', system.one)",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM default.`/etc/passwd`",
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "SELECT file('/etc/passwd')",
        "SELECT * APPLY(file) FROM (SELECT '/etc/passwd')",
        "SELECT 1 INTO OUTFILE '/tmp/fabrictime-must-not-exist'",
        "SELECT * FROM executable('cat /etc/passwd', 'LineAsString', 'a String')",
        "SELECT 1; DROP TABLE fabrictime.delays",
    ],
)
def test_a_reader_reads_the_projects_tables_and_nothing_else(shared_server, query):
    status, headers, body = ask(shared_server, query)
    assert status >= 400, body
    assert headers["X-ClickHouse-Exception-Code"]
    assert b"root:" not in body


@pytest.mark.parametrize("setting", ["readonly", "dialect", "allow_experimental_kusto_dialect"])
def test_a_reader_cannot_escape_by_settings(shared_server, setting):
    assert ask(shared_server, "SELECT 1", **{setting: "0"})[0] >= 400


@pytest.mark.parametrize("user", ["reader", "fabrictime"])
@pytest.mark.parametrize(
    "setting",
    [
        "format_template_row",
        "`format_template_resultset`",
        "format_schema",
        "output_format_schema",
        "format_avro_schema_registry_url",
        "input_format_record_errors_file_path",
        "`dialect`",
    ],
)
def test_no_setting_reaches_a_file_or_an_address(shared_server, tmp_path, user, setting):
    secret = tmp_path / "secret"
    secret.write_text("do-not-tell")
    new = tmp_path / "new.proto"
    value = new if setting.startswith("output") else secret
    for query in (
        f"SELECT number FROM numbers(2) FORMAT Template SETTINGS {setting} = '{value}'",
        f"SELECT number FROM numbers(2) FORMAT ProtobufList SETTINGS {setting} = '{value}'",
        f"DESC format(Template, 'x') SETTINGS {setting} = '{value}'",
        f"SET {setting} = '{value}'",
    ):
        status, _, body = ask(shared_server, query, user=user)
        assert status >= 400, body
        assert b"do-not-tell" not in body
    status, _, body = ask(shared_server, "SELECT 1 FORMAT Template", user, **{setting.strip("`"): str(value)})
    assert status >= 400, body
    assert b"do-not-tell" not in body
    assert not new.exists()


def test_a_reader_cannot_lift_its_limits(shared_server):
    asked = "SELECT value FROM system.settings WHERE name = 'max_' || 'execution_time'"
    for query in (
        "SELECT 1 SETTINGS max_execution_time = 0",
        "SET `max_memory_usage` = 0",
        'SELECT 1 SETTINGS "max_result\\x5fbytes" = 0',
    ):
        assert ask(shared_server, query)[0] == 403
    for value, kept in (("0", b"30\n"), ("9999", b"30\n"), ("5", b"5\n"), ("x", b"30\n")):
        assert ask(shared_server, asked, max_execution_time=value)[2] == kept
    ask(shared_server, "SELECT 1", session_id="limits", max_execution_time="5")
    assert ask(shared_server, asked, session_id="limits")[2] == b"30\n"


def test_the_writer_reads_no_files_either(shared_server):
    for query in ("SELECT * FROM file('/etc/passwd', 'LineAsString')", "SELECT * FROM '/etc/passwd'"):
        status, _, body = ask(shared_server, query, user="fabrictime")
        assert status >= 400, body


def test_a_get_request_changes_nothing(shared_server, client):
    query = "CREATE TABLE fabrictime.by_get (a Int8) ENGINE = Memory"
    status, _, body = ask(shared_server, query, user="fabrictime", method="GET")
    assert (status, b"readonly" in body) == (403, True)
    assert ask(shared_server, "SELECT 7", method="GET")[2] == b"7\n"


def test_formats_and_summary(shared_server):
    status, headers, body = ask(shared_server, "SELECT 1 AS a FORMAT JSON")
    assert (status, headers["X-ClickHouse-Format"], json.loads(body)["data"]) == (200, "JSON", [{"a": 1}])
    _, headers, body = ask(shared_server, "SELECT 2 AS a", default_format="JSONEachRow", query_id="q7")
    assert (json.loads(body), headers["X-ClickHouse-Query-Id"]) == ({"a": 2}, "q7")
    assert int(json.loads(headers["X-ClickHouse-Summary"])["read_rows"]) == 1


def test_a_faulty_query_returns_clickhouses_code_and_no_stack(shared_server):
    status, headers, body = ask(shared_server, "SELECT nope FROM fabrictime.delays")
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (404, "47")
    assert b"Unknown expression identifier" in body
    assert b"Stack trace" not in body


@pytest.mark.parametrize("name", ["compress", "decompress"])
def test_unsupported_framing_is_refused_by_name(shared_server, name):
    status, _, body = ask(shared_server, "SELECT 1", **{name: "1"})
    assert (status, name.encode() in body) == (501, True)


def test_a_large_result_is_packed_for_grafana(shared_server):
    headers = {
        "X-ClickHouse-User": "reader",
        "X-ClickHouse-Key": shared_server.token("reader"),
        "Accept-Encoding": "gzip",
    }
    query = "SELECT number FROM numbers(100000)"
    _, answered, body = ask(shared_server, query, headers=headers, enable_http_compression="1")
    assert answered["Content-Encoding"] == "gzip"
    assert len(body) < 400_000


def test_too_large_a_request_and_too_much_memory_are_refused(own_server):
    server = own_server(request_limit_mib=1, query_memory_limit_mib=64).start()
    status, headers, _ = ask(server, "SELECT '" + "x" * 2_000_000 + "'")
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (413, "396")
    query = "SELECT count() FROM (SELECT groupArray(toString(number)) FROM numbers(20000000))"
    status, headers, _ = ask(server, query)
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (500, "241")
    assert ask(server, "SELECT 1")[2] == b"1\n"


def test_slow_readers_block_no_insert(shared_server, numbers):
    query = "SELECT sleepEachRow(3) FROM numbers(1) SETTINGS function_sleep_max_microseconds_per_block = 9e6"
    readers = [threading.Thread(target=ask, args=(shared_server, query)) for _ in range(12)]
    for reader in readers:
        reader.start()
    time.sleep(0.5)
    began = time.monotonic()
    status, _, _ = ask(shared_server, f"INSERT INTO {numbers} VALUES (1, 'x')", user="fabrictime")
    took = time.monotonic() - began
    for reader in readers:
        reader.join()
    assert status == 200
    assert took < 2


def test_a_second_server_names_the_owner_of_the_directory_or_port(own_server, shared_server, tmp_path):
    second = shared_server.spawn()
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    line = next(line for line in out.splitlines() if line.startswith("fabrictime history:"))
    assert f"held by process {shared_server.process.pid}" in line
    other = own_server(port=shared_server.port)
    third = other.spawn()
    out, _ = third.communicate(timeout=60)
    assert third.returncode == 1
    line = next(line for line in out.splitlines() if line.startswith("fabrictime history:"))
    assert f"127.0.0.1:{shared_server.port}: held by process {shared_server.process.pid}" in line


def test_sigterm_ends_it_cleanly_and_stored_rows_persist(own_server):
    server = own_server().start()
    client = server.client()
    client.command("CREATE TABLE fabrictime.kept (a Int64) ENGINE = MergeTree ORDER BY a")
    client.insert("fabrictime.kept", [[1], [2]], column_names=["a"])
    client.close()
    assert server.stop() == 0
    server.start()
    assert server.client().command("SELECT sum(a) FROM fabrictime.kept") == 3


def test_sigkill_loses_no_acknowledged_row(own_server):
    server = own_server().start()
    client = server.client()
    client.command("CREATE TABLE fabrictime.kept (block Int64, a Int64) ENGINE = MergeTree ORDER BY block")
    acknowledged = []

    def insert():
        for block in range(10_000):
            try:
                client.insert(
                    "fabrictime.kept", [[block, a] for a in range(200)], column_names=["block", "a"]
                )
            except (ClickHouseError, OSError):
                return
            acknowledged.append(block)
            if block == 20:
                enough.set()

    enough = threading.Event()
    thread = threading.Thread(target=insert)
    thread.start()
    assert enough.wait(60)
    server.kill()
    thread.join()
    server.start()
    rows = dict(
        server.client().query("SELECT block, count() FROM fabrictime.kept GROUP BY block").result_rows
    )
    assert dict.fromkeys(acknowledged, 200).items() <= rows.items()
    assert set(rows.values()) == {200}


def test_a_token_file_that_others_can_read_is_refused(own_server):
    server = own_server()
    server.directory.mkdir()
    file = server.directory / "write.token"
    file.write_text("secret\n")
    file.chmod(0o644)
    process = server.spawn()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "expected 0600" in out
    assert "secret" not in out


def test_only_loopback_is_listened_on(tmp_path):
    from fabrictime.history.settings import HistorySettings

    with pytest.raises(ValueError, match="expected a loopback address"):
        HistorySettings(directory=tmp_path, host="0.0.0.0")


def test_tables_of_an_older_version_get_their_columns_and_view(own_server):
    server = own_server().start()
    client = server.client()
    client.command("ALTER TABLE fabrictime.clocks DROP COLUMN residual_ns")
    client.command("DROP VIEW fabrictime.delays_1s_view")
    client.close()
    assert server.stop() == 0
    client = server.start().client()
    assert client.command("SELECT count() FROM (SELECT residual_ns FROM fabrictime.clocks)") == 0
    assert client.command("EXISTS fabrictime.delays_1s_view") == 1


def test_a_dropped_database_is_made_again_at_the_next_request(own_server):
    server = own_server().start()
    client = server.client()
    client.command("DROP DATABASE fabrictime SYNC")
    client.close()
    again = server.client()
    assert again.command("SELECT count() FROM system.databases WHERE name = 'fabrictime'") == 1
    again.command("CREATE TABLE fabrictime.t (a Int64) ENGINE = MergeTree ORDER BY a")
    assert again.command("SELECT count() FROM fabrictime.t") == 0
    again.close()
    server.stop()
