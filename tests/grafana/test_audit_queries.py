"""Figures of the dashboard of audits: the newest result of each host and check counts."""

from grafana import audit_queries


def test_the_newest_result_of_each_host_and_check_counts(asked):
    assert asked(audit_queries.HOSTS).result_rows == [(2,)]
    assert asked(audit_queries.UNFIT_HOSTS).result_rows == [(1,)]
    assert asked(audit_queries.ERRORS).result_rows == [(1,)]
    assert asked(audit_queries.UNKNOWN).result_rows == [(2,)]


def test_failed_checks_stand_first_with_hosts_and_remedy(asked):
    rows = [row[:6] for row in asked(audit_queries.FAILED_CHECKS).result_rows]
    assert rows == [
        ("ERROR", "as expected", "backend.mtu", 1, "MONITOR", "mend"),
        ("UNKNOWN", "as expected", "node.uptime", 2, "MONITOR", "mend"),
    ]
    assert [row[:6] for row in asked(audit_queries.HOST_TABLE).result_rows] == [
        ("h2", 1, 0, 1, 0, "MONITOR"),
        ("h1", 0, 0, 1, 1, ""),
    ]
    assert [row[:2] for row in asked(audit_queries.FINDINGS).result_rows] == [
        ("h2", "ERROR"),
        ("h1", "UNKNOWN"),
        ("h2", "UNKNOWN"),
    ]


def test_texts_that_differ_are_found_and_figures_are_not(asked):
    rows = asked(audit_queries.UNLIKE_VALUES).result_rows
    assert [(row[0], row[3], row[4]) for row in rows] == [("kernel", 2, 2), ("kernel", 2, 2)]
    assert set(rows[0][5].split(", ")) == {"6.5", "6.8"}


def test_outcomes_over_time_count_every_result(asked):
    rows = asked(audit_queries.LEVEL_SERIES).result_rows
    assert {
        (level, sum(row[2] for row in rows if row[1] == level)) for level in {row[1] for row in rows}
    } == {
        ("ERROR", 2),
        ("UNKNOWN", 2),
    }
    assert max(row[2] for row in asked(audit_queries.UNFIT_SERIES).result_rows) == 2
