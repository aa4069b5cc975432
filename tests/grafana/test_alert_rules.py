"""Alert rules: their queries on a filled history, and the forms that Grafana reads."""

import json
import re

import pytest

from grafana import alert_rules, build
from grafana.alert_rules import RULES
from grafana.datasource import UID

BY_UID = {rule.uid: rule for rule in RULES}


@pytest.mark.parametrize("uid", sorted(BY_UID))
def test_a_query_returns_texts_and_one_number_per_row(asked, uid):
    """Grafana makes an alert of each row, with the texts as labels."""
    rule = BY_UID[uid]
    result = asked(rule.sql)
    is_number = [kind.name.startswith(("Float", "Int", "UInt")) for kind in result.column_types]
    assert is_number.count(True) == 1
    assert is_number[-1]
    labels = [row[:-1] for row in result.result_rows]
    assert len(set(labels)) == len(labels)
    assert set(re.findall(r"\$labels\.(\w+)", rule.text + rule.remedy)) <= set(result.column_names[:-1])


def test_a_standing_fault_is_above_its_threshold(asked):
    """The history holds one alert, one slow job and an unfit host; clocks are SYNCED, actions done."""
    standing = {
        uid: [row[:-1] for row in asked(rule.sql).result_rows if row[-1] > rule.above]
        for uid, rule in BY_UID.items()
    }
    assert standing["fabrictime-alert-stands"] == [("LINK_DOWN", "leaf1:swp3<>spine1:swp1", "CRITICAL")]
    assert [job for job, _ in standing["fabrictime-job-slow"]] == ["llm"]
    assert len(standing["fabrictime-host-unfit"]) >= 1
    assert standing["fabrictime-clocks-unsynced"] == standing["fabrictime-actions-fail"] == []


def test_rules_have_the_form_of_files_and_api(tmp_path):
    written = json.loads(alert_rules.write(tmp_path / "alerting").read_text())
    [group] = written["groups"]
    assert group["rules"] == alert_rules.group()["rules"]
    assert len({rule["uid"] for rule in group["rules"]}) == len(RULES)
    for rule in group["rules"]:
        query, condition = rule["data"]
        assert rule["condition"] == condition["refId"] == "B"
        assert (query["datasourceUid"], condition["datasourceUid"]) == (UID, "__expr__")
        assert query["relativeTimeRange"]["from"] > 0
        assert condition["model"]["expression"] == query["refId"]
        assert rule["annotations"]["__dashboardUid__"] in build.DASHBOARDS
        assert rule["noDataState"] in ("OK", "Alerting")
        assert len(rule["uid"]) <= 40
