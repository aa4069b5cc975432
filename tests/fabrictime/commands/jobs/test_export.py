"""Traces of a job from a real log, written to files."""

import json
import time

from schemas.topics import COLLECTIVES, DIAGNOSES
from tests.fabrictime.commands.action_records import fabrictime, produce
from tests.fabrictime.commands.jobs.job_diagnoses import contended
from tests.streams.diagnosis.job_batches import S, run_of


def test_a_job_is_exported_for_perfetto_and_as_chakra_traces(log, tmp_path):
    from_ns = time.time_ns() - 5 * S
    records = run_of("export/1", 3, from_ns, ranks=2)
    diagnosis = contended("export/1", 9, from_ns + 3 * S)
    produce(
        log,
        *((COLLECTIVES, "export/1", each) for each in (*records, *records)),
        (DIAGNOSES, "export/1", diagnosis),
    )
    file, folder = tmp_path / "trace.json", tmp_path / "chakra"
    found = fabrictime(log, "explain", "export/1", "--export", str(file), "--chakra", str(folder))
    assert found.exit_code == 0, found.output
    assert "of 6 records; open it in https://ui.perfetto.dev" in found.output
    trace = json.loads(file.read_text())
    assert sum(each["ph"] == "X" for each in trace["traceEvents"]) == 60, "a repeated record counts once"
    assert any(each["name"].startswith("CONTENTION") for each in trace["traceEvents"])
    assert sorted(each.name for each in folder.iterdir()) == ["export_1.0.json", "export_1.1.json"]
    lines = (folder / "export_1.0.json").read_text().splitlines()
    assert json.loads(lines[0])["version"] == "0.0.4"
    assert len(lines) == 60


def test_a_job_without_operations_is_named(log, tmp_path):
    found = fabrictime(log, "explain", "none", "--export", str(tmp_path / "x.json"), "--since", "60s")
    assert found.exit_code == 2
    assert "job 'none': no operations of it are in the last 60 s of the log" in found.output
