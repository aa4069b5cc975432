"""The history tables: quantiles of merged histograms are right, and agree with native.core's buckets."""

import math
import random

import numpy as np
import pytest

from schemas import table_statements, tables

BUCKET_SQL = "if(v < 1, toUInt16(0), toUInt16(bitShiftRight(reinterpretAsUInt64(toFloat64(v)), 50) - 4092))"
"""The number of the bucket of a delay v, ns: the exponent of a double and two bits of its mantissa."""


def test_retention_reaches_tables_that_exist(client):
    for statement in table_statements.set_retention(tables.DAYS | {"delays": 5, "clocks": 9}):
        client.command(statement)
    ddl = client.command("SELECT create_table_query FROM system.tables WHERE name = 'delays'")
    assert "toIntervalDay(5)" in ddl
    for statement in table_statements.set_retention(tables.DAYS):
        client.command(statement)


def test_tables_that_are_as_they_should_be_need_no_statement(client):
    def missing(retention):
        return table_statements.missing(
            client.query(table_statements.CREATED.format(database=tables.DATABASE)).result_rows, retention
        )

    assert missing(tables.DAYS) == []
    [alter] = missing(tables.DAYS | {"clocks": 9})
    assert alter in table_statements.set_retention(tables.DAYS | {"clocks": 9})
    client.command(f"ALTER TABLE {tables.DATABASE}.{tables.CLOCKS} DROP COLUMN bound_ns")
    client.command(f"DROP TABLE {tables.DATABASE}.{tables.REJECTS}")
    statements = missing(tables.DAYS)
    assert len(statements) == 2
    for statement in statements:
        client.command(statement)
    assert missing(tables.DAYS) == []


def test_sql_buckets_are_those_of_native_core(client):
    core = pytest.importorskip("native.core", reason="native.core is not built")
    rng = random.Random(7)
    values = [0.0, 0.5, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, -5.0]
    values += [float(2**e + d) for e in range(40) for d in (-1, 0, 1)]
    values += [math.nextafter(2.0**e, 0) for e in range(1, 40)]
    values += [10 ** rng.uniform(0, 12) for _ in range(500)]
    got = client.query(
        f"SELECT {BUCKET_SQL} AS b, {tables.bucket_edge_sql('b')} AS low, "
        f"{tables.bucket_edge_sql('b + 1')} AS high FROM (SELECT arrayJoin({{v:Array(Float64)}}) AS v)",
        parameters={"v": values},
    ).result_rows
    assert [row[0] for row in got] == [core.bucket_of(v) for v in values]
    for bucket, low, high in got:
        assert (low, high) == core.bucket_edges_ns(bucket)


@pytest.mark.parametrize("level", [0.0, 0.5, 0.99, 1.0])
def test_quantile_of_merged_histograms_is_within_a_bucket_of_the_samples(client, level):
    samples = np.random.default_rng(3).lognormal(9.5, 0.6, 20_000)
    source = (
        f"SELECT number % 50 AS row, [{BUCKET_SQL}] AS forward_bucket, "
        "[toUInt32(1)] AS forward_bucket_count "
        "FROM (SELECT arrayJoin(arrayEnumerate({v:Array(Float64)})) AS number, "
        "{v:Array(Float64)}[number] AS v)"
    )
    got = client.query(
        f"SELECT {tables.quantile_sql(level, 'm')} FROM (SELECT {tables.merged_sql('forward')} AS m "
        f"FROM ({source}))",
        parameters={"v": samples.tolist()},
        settings={"max_query_size": 10_000_000, "http_max_field_value_size": 10_000_000},
        transport_settings={},
    ).result_rows[0][0]
    assert got == pytest.approx(np.quantile(samples, level), rel=0.26)


def test_quantile_of_nothing_is_null_and_a_bad_level_is_refused(client):
    empty = "SELECT sumMap([toUInt16(1)], [toUInt32(1)]) AS m FROM numbers(0)"
    assert client.query(f"SELECT {tables.quantile_sql(0.5, 'm')} FROM ({empty})").result_rows == [(None,)]
    with pytest.raises(ValueError, match="quantile level 99"):
        tables.quantile_sql(99, "m")
    with pytest.raises(ValueError, match="sideways"):
        tables.merged_sql("sideways")


def test_an_older_table_gets_the_new_columns_and_keeps_its_rows(client):
    new = (
        "drift_sigma_ppb",
        "event",
        "event_ns",
        "knot_at_ns",
        "knot_offset_ns",
        "knot_bound_ns",
        "reference",
    )
    client.command("DROP TABLE fabrictime.suspects")
    for column in new:
        client.command(f"ALTER TABLE fabrictime.clocks DROP COLUMN {column}")
    client.command(
        "INSERT INTO fabrictime.clocks (clock, window, window_start, offset_ns) VALUES ('a', 1, now(), 5)"
    )
    for statement in table_statements.create_all():
        client.command(statement)
    rows = client.query(f"SELECT clock, offset_ns, {', '.join(new)} FROM fabrictime.clocks").result_rows
    assert rows == [("a", 5.0, 0.0, "NONE", 0.0, 0, 0.0, 0.0, "ensemble")]
    assert client.query("SELECT count() FROM fabrictime.suspects").result_rows == [(0,)]


def setup(client):
    """Set the tables up as a sink does before its first insert; return the statements that were needed."""
    created = client.query(table_statements.CREATED.format(database=tables.DATABASE)).result_rows
    statements = table_statements.missing(created, tables.DAYS)
    for statement in statements:
        client.command(statement)
    return statements


def test_an_older_table_gets_the_symbols_and_figures_of_this_version(client):
    """A sink of an earlier version made table and view; rows that it stored stay."""
    older = tables.TABLES["clocks"].create(tables.DAYS["clocks"]).replace(", 'MERGED' = 5", "")
    insert = (
        "INSERT INTO fabrictime.clocks (clock, window, window_start, event) VALUES ('a', {}, now(), '{}')"
    )
    client.command("DROP TABLE fabrictime.clocks")
    client.command(older)
    client.command(insert.format(1, "STEP"))
    view = table_statements.create_rollup_view()
    client.command("DROP VIEW fabrictime.delays_1s_view")
    client.command(view.replace(" g_lost AS lost,", ""))
    assert len(setup(client)) == 2
    assert setup(client) == []
    client.command(insert.format(2, "MERGED"))
    assert client.query("SELECT event FROM fabrictime.clocks ORDER BY window").result_rows == [
        ("STEP",),
        ("MERGED",),
    ]
    client.command(
        "INSERT INTO fabrictime.delays (nic, peer, window, window_start, lost) VALUES ('a', 'b', 1, now(), 7)"
    )
    assert client.query("SELECT sum(lost) FROM fabrictime.delays_1s").result_rows == [(7,)]


def test_a_table_of_a_later_version_is_left_as_it_is(client):
    """After a rollback this version inserts into tables with further columns and symbols."""
    later = (
        tables.TABLES["clocks"]
        .create(tables.DAYS["clocks"])
        .replace("'MERGED' = 5", "'MERGED' = 5, 'LATER' = 6")
    )
    client.command("DROP TABLE fabrictime.clocks")
    client.command(later)
    client.command("ALTER TABLE fabrictime.clocks ADD COLUMN later Float64")
    client.command(
        "INSERT INTO fabrictime.clocks (clock, window, window_start, event) VALUES ('a', 1, now(), 'LATER')"
    )
    assert setup(client) == []
    client.command(
        "INSERT INTO fabrictime.clocks (clock, window, window_start, event) VALUES ('a', 2, now(), 'STEP')"
    )
    rows = client.query("SELECT event, later FROM fabrictime.clocks ORDER BY window").result_rows
    assert rows == [("LATER", 0.0), ("STEP", 0.0)]
    client.command("DROP TABLE fabrictime.clocks")
    setup(client)
