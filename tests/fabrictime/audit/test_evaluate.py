"""The evaluation on a report, and the names that limit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictime.audit.collect import Collector
from fabrictime.audit.evaluate import evaluated, for_agents, load_baseline, write_baseline
from fabrictime.audit.report import ANSWER, AuditReport
from schemas.input_error import InputError
from schemas.records import AuditFact, AuditStatus
from streams.audit.hosts.baseline import Baseline, BaselineError, Expected
from tests.fabrictime.audit.results import RUN, result

FOUND = Baseline(runs=("r1",), expected=(Expected(sku="h100", fact="driver", texts=("570.1",)),))


def report_of(values: dict[str, str]) -> AuditReport:
    collector = Collector(RUN, [*values, "silent"], 0, {})
    for host, value in values.items():
        fact = AuditFact(name="kernel", subject="", text=value, number=None)
        collector.add({**result(host, "software.kernel", checks=1), "facts": [fact]})
    return collector.report(10**9, 20)


def test_an_odd_host_is_found() -> None:
    report = evaluated(report_of({f"h{n}": "6.8" if n else "6.5" for n in range(6)}))
    odd = report.results["h0"]["fleet.kernel"]
    assert odd["status"] == AuditStatus.FAILED
    assert "fleet.kernel" not in report.results["h1"]
    assert set(report.results["silent"]) == {ANSWER}
    assert "fleet" not in report.hosts
    assert any(each["host"] == "fleet" for each in report.all_results())


def test_the_report_is_limited_to_names() -> None:
    report = report_of({f"h{n}": "6.8" for n in range(4)})
    assert {each["check"] for each in evaluated(report, ["fabric"]).all_results()} == {ANSWER, "fleet.kernel"}
    assert {each["check"] for each in evaluated(report, ["gpu"]).all_results()} == {ANSWER}


def test_computed_results_need_the_facts_of_all_checks() -> None:
    assert for_agents(["backend", "node.uptime"]) == ["backend", "node.uptime"]
    assert for_agents(["backend", "fleet.kernel"]) == []
    assert for_agents(["fabric"]) == ["fabric"]
    with pytest.raises(InputError, match="--only bakend: expected software, node"):
        for_agents(["bakend"])


def test_hosts_are_compared_with_their_machine_type() -> None:
    collector = Collector(RUN, ["h1"], 0, {})
    gpu = AuditFact(name="name", subject="GPU 0", text="NVIDIA H100 80GB HBM3", number=None)
    count = AuditFact(name="gpus", subject="", text="7", number=7.0)
    collector.add({**result("h1", "gpu.count", checks=1), "facts": [gpu, count]})
    report = evaluated(collector.report(10**9, 20))
    assert report.results["h1"]["sku.gpus"]["text"].startswith("h1 has gpus 7, a h100 8 (")


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "baseline.toml"
    write_baseline(path, FOUND)
    assert load_baseline(path) == FOUND
    assert [each.name for each in tmp_path.iterdir()] == ["baseline.toml"]
    as_json = tmp_path / "baseline.json"
    as_json.write_text(FOUND.model_dump_json(), encoding="utf-8")
    assert load_baseline(as_json) == FOUND


@pytest.mark.parametrize(
    ("text", "reason"),
    [("x = ", "not a TOML file: Invalid value"), ("x = 1", "x: Extra inputs are not permitted")],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "baseline.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BaselineError) as error:
        load_baseline(path)
    assert str(error.value).startswith(f"baseline {path}: {reason}")
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_folder_that_is_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="No such file or directory"):
        load_baseline(tmp_path / "none.toml")
    with pytest.raises(BaselineError, match="expected a file to write"):
        write_baseline(tmp_path / "none" / "baseline.toml", FOUND)
