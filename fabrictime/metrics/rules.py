"""Recording and alert rules for Prometheus, as code, each alert with test data that raises it.

`docker/prometheus/rules.yml` and `rules-test.yml` are generated from here. promtool checks both in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

from actuators.notify.runbooks import DOCUMENTATION

HEAD: Final = "# Generated from fabrictime/metrics/rules.py by tools/reference_docs.py.\n"
RUNBOOK: Final = f"{DOCUMENTATION}/metrics.md#alerts"
INTERVAL_MINUTES: Final = 1
STEPS: Final = 30
"""Number of samples of each series in a test of an alert: half an hour."""
WARNING, CRITICAL = "warning", "critical"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording rule of Prometheus."""

    record: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert rule. `raised_by` and `quiet_with` map series to start and step of their values in a test."""

    name: str
    expr: str
    minutes: int
    severity: str
    summary: str
    action: str
    raised_by: dict[str, tuple[float, float]]
    quiet_with: dict[str, tuple[float, float]]


RECORDINGS: Final = (
    Recording("fabrictime:probes_sent:rate5m", "sum(rate(fabrictime_probes_sent_total[5m]))"),
    Recording(
        "fabrictime:probes_lost:ratio_rate5m",
        "sum(rate(fabrictime_probes_lost_total[5m])) / sum(rate(fabrictime_probes_sent_total[5m]))",
    ),
    Recording("fabrictime:records_published:rate5m", "sum(rate(fabrictime_records_published_total[5m]))"),
    Recording("fabrictime:records_dropped:rate5m", "sum(rate(fabrictime_records_dropped_total[5m]))"),
    Recording(
        "fabrictime:log_append_seconds:mean5m",
        "sum(rate(fabrictime_log_append_seconds_sum[5m]))"
        " / sum(rate(fabrictime_log_append_seconds_count[5m]))",
    ),
    Recording("fabrictime:stage_records:rate5m", "sum by (stage) (rate(fabrictime_stage_records_total[5m]))"),
    Recording("fabrictime:stage_lag_records:sum", "sum by (stage) (fabrictime_stage_lag_records)"),
    Recording("fabrictime:links:max", "max by (state) (fabrictime_links)"),
    Recording(
        "fabrictime:clocks_synced:ratio",
        'sum(fabrictime_fleet_clocks{state="SYNCED"}) / sum(fabrictime_fleet_clocks)',
    ),
    Recording("fabrictime:decisions:rate5m", "sum by (action) (rate(fabrictime_decisions_total[5m]))"),
    Recording("fabrictime:actions:rate5m", "sum by (result) (rate(fabrictime_actions_total[5m]))"),
    Recording("fabrictime:audit_findings:sum", "sum by (severity) (fabrictime_audit_findings)"),
)

ALERTS: Final = (
    Alert(
        "FabrictimeTargetDown",
        'up{job=~"fabrictime.*"} == 0',
        3,
        WARNING,
        "{{ $labels.instance }} does not answer Prometheus.",
        "Check the host, then `systemctl status` or the pod; `fabrictime status` shows its services.",
        {'up{job="fabrictime-agents",instance="h1:8481"}': (0, 0)},
        {'up{job="fabrictime-agents",instance="h1:8481"}': (1, 0)},
    ),
    Alert(
        "FabrictimeProcessNotReady",
        'fabrictime_processes{state="not_ready"} > 0',
        5,
        WARNING,
        "{{ $value }} processes of {{ $labels.instance }} are not ready.",
        "`fabrictime status` names them with the reason.",
        {'fabrictime_processes{state="not_ready",instance="h1:8481"}': (1, 0)},
        {'fabrictime_processes{state="not_ready",instance="h1:8481"}': (0, 0)},
    ),
    Alert(
        "FabrictimeRestarts",
        "increase(fabrictime_restarts_total[15m]) > 3",
        0,
        WARNING,
        "{{ $labels.service }} on {{ $labels.instance }} restarted more than three times in 15 minutes.",
        "Read its file in `run/` of the data directory: the last lines state the cause.",
        {'fabrictime_restarts_total{service="flows",instance="h1:8481"}': (0, 1)},
        {'fabrictime_restarts_total{service="flows",instance="h1:8481"}': (3, 0)},
    ),
    Alert(
        "FabrictimeRecordsDropped",
        "increase(fabrictime_records_dropped_total[5m]) > 0",
        5,
        WARNING,
        "{{ $labels.instance }} gives up records: the log does not take them.",
        "Check the connection to Kafka, the brokers and their disks.",
        {'fabrictime_records_dropped_total{instance="h1:8481"}': (0, 10)},
        {'fabrictime_records_dropped_total{instance="h1:8481"}': (10, 0)},
    ),
    Alert(
        "FabrictimeRecordsRejected",
        "increase(fabrictime_records_rejected_total[15m]) > 0",
        15,
        WARNING,
        "{{ $labels.instance }} reads messages that cannot be used.",
        "`fabrictime tail fabric.rejects` shows topic, offset and reason.",
        {'fabrictime_records_rejected_total{instance="w1:8481"}': (0, 1)},
        {'fabrictime_records_rejected_total{instance="w1:8481"}': (1, 0)},
    ),
    Alert(
        "FabrictimeStageBehind",
        "fabrictime:stage_lag_records:sum > 60 * fabrictime:stage_records:rate5m and "
        "fabrictime:stage_lag_records:sum > 1000",
        5,
        WARNING,
        "Stage {{ $labels.stage }} has {{ $value }} messages before it: more than a minute of work.",
        "Add workers, up to the number of partitions; a stage without progress is restarted by its watchdog.",
        {
            'fabrictime_stage_lag_records{stage="delays",instance="w1:8481"}': (9000, 0),
            'fabrictime_stage_records_total{stage="delays",instance="w1:8481"}': (0, 60),
        },
        {
            'fabrictime_stage_lag_records{stage="delays",instance="w1:8481"}': (9000, 0),
            'fabrictime_stage_records_total{stage="delays",instance="w1:8481"}': (0, 600_000),
        },
    ),
    Alert(
        "FabrictimeStageWithoutOwner",
        "sum by (stage) (fabrictime_stage_partitions) == 0",
        3,
        CRITICAL,
        "No worker owns a partition of stage {{ $labels.stage }}.",
        "Check that workers with this stage run and that their consumer group is stable.",
        {'fabrictime_stage_partitions{stage="links",instance="l1:8481"}': (0, 0)},
        {'fabrictime_stage_partitions{stage="links",instance="l1:8481"}': (4, 0)},
    ),
    Alert(
        "FabrictimeEvaluationsFail",
        "increase(fabrictime_evaluations_failed_total[15m]) > 0",
        0,
        WARNING,
        "Evaluations on {{ $labels.instance }} end with an unexpected error.",
        "`fabrictime tail fabric.rejects` names the stage and the place in the code. Report it.",
        {'fabrictime_evaluations_failed_total{instance="w1:8481"}': (0, 1)},
        {'fabrictime_evaluations_failed_total{instance="w1:8481"}': (2, 0)},
    ),
    Alert(
        "FabrictimeLogSlow",
        "fabrictime:log_append_seconds:mean5m > 1",
        5,
        WARNING,
        "The log acknowledges records after {{ $value | humanizeDuration }} on average.",
        "Check the brokers' disks, network and request queues. Detection is late by as much.",
        {
            'fabrictime_log_append_seconds_sum{instance="h1:8481"}': (0, 300),
            'fabrictime_log_append_seconds_count{instance="h1:8481"}': (0, 100),
        },
        {
            'fabrictime_log_append_seconds_sum{instance="h1:8481"}': (0, 1),
            'fabrictime_log_append_seconds_count{instance="h1:8481"}': (0, 100),
        },
    ),
    Alert(
        "FabrictimeLogDiskFull",
        "fabrictime_broker_free_bytes < 2e9",
        5,
        CRITICAL,
        "The embedded log has {{ $value | humanize1024 }}B of disk left; without space it refuses messages.",
        "Free space, or lower `log.total_bytes`.",
        {'fabrictime_broker_free_bytes{instance="s1:8481"}': (1e9, 0)},
        {'fabrictime_broker_free_bytes{instance="s1:8481"}': (9e9, 0)},
    ),
    Alert(
        "FabrictimeStateOld",
        "fabrictime_state_age_seconds > 30",
        3,
        WARNING,
        "The fleet's state on {{ $labels.instance }} is {{ $value | humanizeDuration }} old.",
        "Check that workers run and that the log answers.",
        {'fabrictime_state_age_seconds{instance="web:8481"}': (60, 60)},
        {'fabrictime_state_age_seconds{instance="web:8481"}': (1, 0)},
    ),
    Alert(
        "FabrictimeWindowsLate",
        "max(fabrictime_window_delay_seconds) > 10",
        5,
        WARNING,
        "Clock windows are published {{ $value | humanizeDuration }} after their end.",
        "The worker of the clocks needs more processor time, or probe batches come late.",
        {'fabrictime_window_delay_seconds{instance="w1:8481"}': (30, 0)},
        {'fabrictime_window_delay_seconds{instance="w1:8481"}': (0.5, 0)},
    ),
    Alert(
        "FabrictimeClocksUnsynced",
        'sum(fabrictime_fleet_clocks{state="UNSYNCED"}) > 0',
        10,
        WARNING,
        "{{ $value }} clocks are not synchronised.",
        "`fabrictime clock` lists them, the worst first.",
        {'fabrictime_fleet_clocks{state="UNSYNCED",instance="w1:8481"}': (2, 0)},
        {'fabrictime_fleet_clocks{state="UNSYNCED",instance="w1:8481"}': (0, 0)},
    ),
    Alert(
        "FabrictimeClockBoundLarge",
        "max(fabrictime_fleet_clock_bound_seconds) > 10e-6",
        10,
        WARNING,
        "The error bound of a clock is {{ $value | humanizeDuration }}.",
        "`fabrictime clock --worst 5` shows clock, pairs and state. Queues on its paths widen the bound.",
        {'fabrictime_fleet_clock_bound_seconds{instance="w1:8481"}': (5e-5, 0)},
        {'fabrictime_fleet_clock_bound_seconds{instance="w1:8481"}': (5e-7, 0)},
    ),
    Alert(
        "FabrictimeClockPageUnsynced",
        'fabrictime_clock_pages{state="UNSYNCED"} > 0',
        10,
        WARNING,
        "Programs on {{ $labels.instance }} get no fabric time.",
        "`fabrictime clock --host` shows whether its clock is measured.",
        {'fabrictime_clock_pages{state="UNSYNCED",instance="h1:8481"}': (1, 0)},
        {'fabrictime_clock_pages{state="UNSYNCED",instance="h1:8481"}': (0, 0)},
    ),
    Alert(
        "FabrictimeProbesLost",
        "fabrictime:probes_lost:ratio_rate5m > 0.01",
        5,
        WARNING,
        "{{ $value | humanizePercentage }} of all probes are lost.",
        "`fabrictime links` shows lossy and dead links, `fabrictime alerts` the cause.",
        {
            'fabrictime_probes_lost_total{instance="h1:8481"}': (0, 6_000),
            'fabrictime_probes_sent_total{instance="h1:8481"}': (0, 60_000),
        },
        {
            'fabrictime_probes_lost_total{instance="h1:8481"}': (0, 1),
            'fabrictime_probes_sent_total{instance="h1:8481"}': (0, 60_000),
        },
    ),
    Alert(
        "FabrictimeLinksDown",
        'fabrictime:links:max{state="DOWN"} > 0',
        1,
        CRITICAL,
        "{{ $value }} links are DOWN.",
        "`fabrictime links` names them with since when and the evidence.",
        {'fabrictime_links{state="DOWN",instance="web:8481"}': (1, 0)},
        {'fabrictime_links{state="DOWN",instance="web:8481"}': (0, 0)},
    ),
    Alert(
        "FabrictimeLinksDegraded",
        'fabrictime:links:max{state=~"GREY|FLAPPING"} > 0',
        5,
        WARNING,
        "{{ $value }} links are {{ $labels.state }}.",
        "`fabrictime links` names them with since when and the evidence.",
        {'fabrictime_links{state="GREY",instance="web:8481"}': (1, 0)},
        {'fabrictime_links{state="GREY",instance="web:8481"}': (0, 0)},
    ),
    Alert(
        "FabrictimeActionsFail",
        'increase(fabrictime_actions_total{result="failed"}[15m]) > 0',
        0,
        WARNING,
        "Actions on flows of {{ $labels.instance }} fail.",
        "`fabrictime actions` shows each with its detail.",
        {'fabrictime_actions_total{result="failed",instance="h1:8481"}': (0, 1)},
        {'fabrictime_actions_total{result="failed",instance="h1:8481"}': (1, 0)},
    ),
    Alert(
        "FabrictimeActionBudgetSpent",
        "fabrictime_action_budget_used_ratio >= 1",
        10,
        WARNING,
        "The action limit {{ $labels.limit }} is used up: further actions are suppressed.",
        "`fabrictime actions --suppressed` lists them. Raise the limit only after the cause is known.",
        {'fabrictime_action_budget_used_ratio{limit="MOVED_SHARE",instance="web:8481"}': (1, 0)},
        {'fabrictime_action_budget_used_ratio{limit="MOVED_SHARE",instance="web:8481"}': (0.5, 0)},
    ),
    Alert(
        "FabrictimeAuditErrors",
        'fabrictime_audit_findings{severity="ERROR"} > 0',
        15,
        WARNING,
        "{{ $value }} checks of {{ $labels.instance }} fail with severity ERROR.",
        "`fabrictime audit` shows each with its remedy.",
        {'fabrictime_audit_findings{severity="ERROR",instance="h1:8481"}': (2, 0)},
        {'fabrictime_audit_findings{severity="ERROR",instance="h1:8481"}': (0, 0)},
    ),
    Alert(
        "FabrictimeNotificationsWaiting",
        "fabrictime_notifications_waiting > 0",
        10,
        CRITICAL,
        "{{ $value }} notifications of alerts wait: no receiver accepts them.",
        "`fabrictime status` shows the fault of the notifier. Check the receiver and its credentials.",
        {'fabrictime_notifications_waiting{instance="n1:8481"}': (3, 0)},
        {'fabrictime_notifications_waiting{instance="n1:8481"}': (0, 0)},
    ),
    Alert(
        "FabrictimeNotificationsRefused",
        'increase(fabrictime_notifications_total{result="refused"}[1h]) > 0',
        0,
        CRITICAL,
        "{{ $value }} notifications of alerts were given up, because a receiver refuses their content.",
        "The notifier's log names the alerts and the receiver's answer.",
        {'fabrictime_notifications_total{result="refused",instance="n1:8481"}': (0, 1)},
        {'fabrictime_notifications_total{result="refused",instance="n1:8481"}': (4, 0)},
    ),
    Alert(
        "FabrictimeDrainsStopped",
        "fabrictime_drains_stopped > 0",
        0,
        CRITICAL,
        "The circuit breaker of {{ $labels.instance }} is open: no node is drained.",
        "`fabrictime audit repairs` lists the drains; its option `--reset` allows drains again.",
        {'fabrictime_drains_stopped{instance="d1:8481"}': (1, 0)},
        {'fabrictime_drains_stopped{instance="d1:8481"}': (0, 0)},
    ),
    Alert(
        "FabrictimeMetricsIncomplete",
        "increase(fabrictime_metrics_errors_total[10m]) > 0",
        10,
        WARNING,
        "Some metrics of {{ $labels.instance }} cannot be read.",
        "The log of the service names the source and the error.",
        {'fabrictime_metrics_errors_total{instance="h1:8481"}': (0, 1)},
        {'fabrictime_metrics_errors_total{instance="h1:8481"}': (4, 0)},
    ),
)


def rules_file(runbook: str = RUNBOOK) -> str:
    """Return the text of rules.yml. `runbook` is the address of the documentation of the alerts."""
    alerts = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": f"{alert.minutes}m",
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.action, "runbook_url": runbook},
        }
        for alert in ALERTS
    ]
    recordings = [{"record": rule.record, "expr": rule.expr} for rule in RECORDINGS]
    groups = [
        {"name": "fabrictime-recordings", "rules": recordings},
        {"name": "fabrictime-alerts", "rules": alerts},
    ]
    return _yaml({"groups": groups})


def promtool_tests() -> str:
    """Return the text of rules-test.yml: each alert fires with its data, and does not fire with its quiet
    data.

    All alerts share two tests, because promtool creates a database for each test.
    """
    raised = {name: values for alert in ALERTS for name, values in alert.raised_by.items()}
    quiet = {name: values for alert in ALERTS for name, values in alert.quiet_with.items()}
    tests = [_test("each alert is raised", raised, 1), _test("each alert stays quiet", quiet, None)]
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    return _yaml(document)


def _test(name: str, series: dict[str, tuple[float, float]], firing: int | None) -> dict[str, Any]:
    """Return a promtool test that expects `firing` instances of each alert; None expects no instance."""
    samples = [] if firing is None else [{"labels": "{}", "value": firing}]
    return {
        "name": name,
        "interval": f"{INTERVAL_MINUTES}m",
        "input_series": [
            {"series": of_series, "values": f"{start:g}+{step:g}x{STEPS}"}
            for of_series, (start, step) in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert.name}", alertstate="firing"}})',
                "eval_time": f"{STEPS * INTERVAL_MINUTES}m",
                "exp_samples": samples,
            }
            for alert in ALERTS
        ],
    }


def _yaml(document: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=1_000)
    return HEAD + text
