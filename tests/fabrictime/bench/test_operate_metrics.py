"""The bench of the metrics counts series and finds a metric without help or unit."""

from fabrictime.bench.operate import metrics

TEXT = """# HELP fabrictime_links Cables.
# TYPE fabrictime_links gauge
fabrictime_links{state="UP"} 3.0
fabrictime_links{state="DOWN"} 0.0
# HELP fabrictime_flows \n# TYPE fabrictime_flows gauge
fabrictime_flows 1.0
# HELP fabrictime_unlisted A metric outside the table.
# TYPE fabrictime_unlisted gauge
fabrictime_unlisted 1.0
# EOF
"""


def test_series_and_incomplete_metrics_are_counted() -> None:
    assert metrics._series(TEXT) == 4
    assert metrics._incomplete(TEXT) == 2, "one has no help, the other no unit"


def test_promtool_counts_a_text_that_is_no_metrics(tmp_path) -> None:
    lines: list[str] = []
    errors = metrics._promtool_errors(tmp_path, ["no metrics at all {"], lines.append)
    if isinstance(errors, metrics.Missing):
        assert "promtool" in errors.reason
    else:
        assert errors == 1
        assert "check metrics" in lines[0]
