"""The SQL scanner: how it splits statements and which it refuses, without an engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.history import sql


@pytest.mark.parametrize(
    ("body", "text", "name", "data"),
    [
        (b"INSERT INTO t (a, b) FORMAT Native\n\x01\x02", "INSERT INTO t (a, b) ", "Native", b"\x01\x02"),
        (b"insert into t format TSV\r\n1\t2\n", "insert into t ", "TSV", b"1\t2\n"),
        (
            b"/* FORMAT x */ INSERT INTO `format` FORMAT CSV 1,2",
            "/* FORMAT x */ INSERT INTO `format` ",
            "CSV",
            b"1,2",
        ),
        (
            b"INSERT INTO t SETTINGS a=0 FORMAT JSONEachRow {}",
            "INSERT INTO t SETTINGS a=0 ",
            "JSONEachRow",
            b"{}",
        ),
    ],
)
def test_an_inserts_data_is_cut_off_after_its_format(body, text, name, data):
    statement = sql.parse(body)
    assert (statement.text, statement.format, bytes(statement.data)) == (text, name, data)


@pytest.mark.parametrize(
    "body", [b"INSERT INTO t VALUES (1, 'FORMAT TSV')", b"INSERT INTO t SELECT 1 FORMAT TSV"]
)
def test_an_insert_without_data_of_its_own_stays_whole(body):
    assert sql.parse(body) == sql.Statement(body.decode(), "INSERT")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "SELECT FILE ( '/etc/passwd')",
        "SELECT `file`('/etc/passwd')",
        "SELECT \"file\" /* x */ ('/etc/passwd')",
        "SELECT `\\file`('/etc/passwd')",
        "SELECT `\\x66ile`('/etc/passwd')",
        "SELECT * APPLY(file) FROM (SELECT '/etc/passwd')",
        "CREATE TABLE fabrictime.x (a String) ENGINE = File(TSV, '/etc/passwd')",
        "SELECT * FROM python(x)",
        "SELECT 1 INTO OUTFILE '/tmp/x'",
        "INSERT INTO t FROM INFILE '/etc/passwd' FORMAT TSV",
        "SELECT 1; SELECT 2",
        "SELECT 1;; ",
        "SET dialect = 'prql'",
        "SELECT $a$text$a$",
        "SELECT 1 # file",
        "SELECT /* /* */ 1 -- */",
        "SELECT \u2018x\u2019",
        "SELECT 'open",
        "SELECT /* open",
        "SELECT \x00 1",
        "",
        " -- nothing",
    ],
)
def test_statements_refused_for_all_users(text):
    with pytest.raises(sql.Refused):
        sql.parse(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'file(x)'",
        "SELECT file FROM t -- file(",
        "SELECT count() FROM t;",
        "WITH 1 AS x SELECT x",
        "(SELECT 1)",
        "SELECT * FROM t WHERE nic = 'it''s; ok'",
        "SET max_threads = 1",
        "SHOW TABLES",
    ],
)
def test_statements_accepted_from_readers(text):
    sql.check_reader(sql.parse(text.encode()))


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES (1)",
        "DROP TABLE t",
        "SET ROLE writer",
        "set `role` writer",
        "SYSTEM SHUTDOWN",
        "EXECUTE AS x SELECT 1",
        "GRANT writer TO reader",
        "KILL QUERY WHERE 1",
        "BACKUP TABLE t TO Disk('x')",
    ],
)
def test_statements_refused_from_readers(text):
    with pytest.raises(sql.Refused):
        sql.check_reader(sql.parse(text.encode()))


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(body):
    try:
        statement = sql.parse(body)
    except sql.Refused:
        return
    assert statement.keyword


def test_separately_sent_data_belongs_to_its_insert():
    for query, rest in ((b"INSERT INTO t FORMAT CSV", b"1\n2"), (b"INSERT INTO t FORMAT CSV 1", b"2")):
        assert bytes(sql.parse(query, rest).data) == b"1\n2"
    assert sql.parse(b"INSERT INTO t VALUES", b"(1)").text == "INSERT INTO t VALUES\n(1)"
    for query, rest in ((b"SELECT 1", b"; SELECT 2"), (b"SELECT file", b"('/etc/passwd')")):
        with pytest.raises(sql.Refused):
            sql.parse(query, rest)
