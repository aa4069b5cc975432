"""Alert rules for Grafana, evaluated on rows of the history.

They suit sites that send alerts from Grafana. Sites with Prometheus have rules on the processes' metrics.
`fabrictime notify` sends the product's own alerts without Grafana or Prometheus.

Format: https://grafana.com/docs/grafana/v11.6/alerting/set-up/provision-alerting-resources/file-provisioning/
and Grafana's HTTP API for provisioning. A rule's query returns rows of texts and one number. Each row is an
alert with the texts as its labels, active while the number is above the threshold.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grafana.datasource import UID, target
from grafana.queries import GRAFANA
from schemas import queries, tables

GROUP: Final = "fabrictime"
FOLDER_TITLE: Final = "fabrictime"
EVERY_S: Final = 60
_DB: Final = tables.DATABASE
_RESULTS: Final = queries.newest_results(GRAFANA.rows(tables.AUDIT, time="checked"), ("severity",))


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert rule; `uid` identifies it in Grafana, so that a second push updates the rule."""

    uid: str
    title: str
    sql: str
    above: float
    """Threshold of the number."""
    text: str
    """Text of the alert; Grafana fills in the labels and the number."""
    remedy: str
    board: str
    """Dashboard that shows more."""
    severity: str = "warning"
    wait: str = "0s"
    """Time for which the number must stay above the threshold."""
    range_s: int = 600
    is_alert_without_data: bool = False

    def data(self) -> list[dict[str, Any]]:
        """Return the rule's query, A, and its condition, B."""
        threshold = {"type": "gt", "params": [self.above]}
        return [
            {
                "refId": "A",
                "datasourceUid": UID,
                "relativeTimeRange": {"from": self.range_s, "to": 0},
                "model": target(self.sql, "A"),
            },
            {
                "refId": "B",
                "datasourceUid": "__expr__",
                "relativeTimeRange": {"from": 0, "to": 0},
                "model": {
                    "refId": "B",
                    "type": "threshold",
                    "datasource": {"type": "__expr__", "uid": "__expr__"},
                    "expression": "A",
                    "conditions": [{"evaluator": threshold}],
                },
            },
        ]

    def rule(self) -> dict[str, Any]:
        """Return the rule in the common format of Grafana's files and API."""
        return {
            "uid": self.uid,
            "title": self.title,
            "condition": "B",
            "data": self.data(),
            "noDataState": "Alerting" if self.is_alert_without_data else "OK",
            "execErrState": "Error",
            "for": self.wait,
            "labels": {"severity": self.severity, "product": "fabrictime"},
            "annotations": {
                "summary": self.text,
                "description": self.remedy,
                "__dashboardUid__": self.board,
            },
        }


RULES: Final = (
    AlertRule(
        "fabrictime-alert-stands",
        "fabrictime: an alert stands",
        "SELECT toString(kind) AS kind, subject, toString(severity) AS level, toFloat64(count()) AS standing "
        f"FROM {_DB}.{tables.ALERTS} FINAL WHERE state != 'CLEARED' AND severity != 'INFO' "
        "GROUP BY kind, subject, level ORDER BY kind, subject",
        0,
        "{{ $labels.kind }} at {{ $labels.subject }}, {{ $labels.level }}",
        "Open the alert on the live page; its runbook is docs/runbooks.",
        "fabrictime-fabric",
    ),
    AlertRule(
        "fabrictime-history-late",
        "fabrictime: the history is late",
        "SELECT toFloat64(dateDiff('second', max(window_end), now())) AS late_s "
        f"FROM {_DB}.{tables.PIPELINE} WHERE $__timeFilter(window_start)",
        60,
        "The newest window in the history is {{ $values.A.Value }} s old",
        "`fabrictime status` shows which stage is behind. Until then the dashboards show the past.",
        "fabrictime-pipeline",
        severity="critical",
        wait="2m",
        is_alert_without_data=True,
    ),
    AlertRule(
        "fabrictime-clocks-unsynced",
        "fabrictime: clocks without fabric time",
        f"SELECT toFloat64(countIf(state = 'UNSYNCED')) AS clocks FROM ({queries.newest_clocks(GRAFANA)})",
        0,
        "{{ $values.A.Value }} clocks are UNSYNCED: one-way delays of their NICs are unknown",
        "The dashboard lists the clocks. Most often a prober does not run or its probes are filtered.",
        "fabrictime-clocks",
        wait="5m",
        range_s=60,
    ),
    AlertRule(
        "fabrictime-job-slow",
        "fabrictime: the network slows a job",
        "SELECT job, toString(newest) AS cause, toFloat64(lost) AS lost_share FROM (SELECT job, "
        "argMax(verdict, (began, number)) AS newest, argMax(blames_network, (began, number)) AS blamed, "
        "argMax(loss_share, (began, number)) AS lost "
        f"{GRAFANA.rows(tables.DIAGNOSES, time='began')} GROUP BY job) WHERE blamed ORDER BY job",
        0.05,
        "{{ $labels.job }} loses {{ humanizePercentage $values.A.Value }} of its time: {{ $labels.cause }}",
        "`fabrictime explain {{ $labels.job }}` names rank, flow and link.",
        "fabrictime-jobs",
        wait="2m",
        range_s=120,
    ),
    AlertRule(
        "fabrictime-host-unfit",
        "fabrictime: a host is not fit for jobs",
        f"SELECT host, toFloat64(countIf(level = 'ERROR')) AS errors FROM ({_RESULTS}) "
        "GROUP BY host HAVING errors > 0 ORDER BY host",
        0,
        "{{ $labels.host }} fails {{ $values.A.Value }} checks of severity error",
        "The dashboard has each check's remedy. Drain the host before the next job.",
        "fabrictime-audit",
        range_s=7 * 86_400,
    ),
    AlertRule(
        "fabrictime-actions-fail",
        "fabrictime: actions fail",
        "SELECT toFloat64(countIf(outcome = 'FAILED')) AS failed "
        f"{GRAFANA.rows(tables.ACTIONS, time='done')}",
        0,
        "{{ $values.A.Value }} actions failed within 10 minutes",
        "The dashboard lists each with the effector's own words.",
        "fabrictime-actions",
    ),
)


def group() -> dict[str, Any]:
    """Return the group of all rules in the format of Grafana's API."""
    return {"title": GROUP, "interval": EVERY_S, "rules": [rule.rule() for rule in RULES]}


def write(folder: Path) -> Path:
    """Write the rules to a file for Grafana's folder `provisioning/alerting`; return its path."""
    place = {"orgId": 1, "name": GROUP, "folder": FOLDER_TITLE, "interval": f"{EVERY_S}s"}
    content = {"apiVersion": 1, "groups": [{**place, "rules": group()["rules"]}]}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fabrictime.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path
