"""promtool accepts the rules, raises each alert by its data, and the rules name declared metrics only."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fabrictime.metrics.rules import ALERTS, RECORDINGS, promtool_tests, rules_file
from schemas.metrics.table import METRIC_OF_SAMPLE

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docker" / "prometheus"


def promtool(*arguments, folder):
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rules.yml").write_text(rules_file())
    (tmp_path / "rules-test.yml").write_text(promtool_tests())
    shutil.copy(FOLDER / "prometheus.yml", tmp_path)
    return tmp_path


def test_rules_use_declared_metrics_and_recordings_only():
    declared = {*METRIC_OF_SAMPLE, *(rule.record for rule in RECORDINGS)}
    for rule in (*RECORDINGS, *ALERTS):
        names = set(re.findall(r"fabrictime[_:][a-z0-9_:]+", rule.expr))
        assert names <= declared, f"{rule.expr}: {names - declared} is not declared"


def test_each_label_in_a_condition_is_declared():
    for alert in ALERTS:
        for name, labels in re.findall(r"(fabrictime_[a-z_]+)\{([^}]*)\}", alert.expr):
            declared = dict(METRIC_OF_SAMPLE[name].labels)
            for label, value in re.findall(r'(\w+)="([^"]+)"', labels):
                assert value in declared[label], f"{alert.name}: {label}={value}"


def test_promtool_accepts_the_rules(folder):
    done = promtool("check", "rules", "rules.yml", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RECORDINGS) + len(ALERTS)} rules" in done.stdout


def test_promtool_accepts_the_example_configuration(folder):
    done = promtool("check", "config", "prometheus.yml", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_raised_by_its_data_and_stays_quiet_without(folder):
    done = promtool("test", "rules", "rules-test.yml", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_reports_an_alert_that_is_not_raised(folder):
    text = (folder / "rules-test.yml").read_text()
    (folder / "rules-test.yml").write_text(text.replace("value: 1", "value: 2", 1))
    assert promtool("test", "rules", "rules-test.yml", folder=folder).returncode != 0
