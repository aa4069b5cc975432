"""The `audit` command: its choice of checks, its report, its exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fabrictime.commands.audit import run as audit
from fabrictime.testbed.audit.faults import FAULTS
from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost
from fabrictime.testbed.audit.recorded_network import READS
from producers.audit.base import Result, run_check
from producers.audit.checks import CHECKS
from schemas.input_error import InputError


def results(host: RecordedHost = HEALTHY) -> list[Result]:
    return [run_check(check, host) for check in CHECKS.values()]


def with_fault(name: str) -> list[Result]:
    host = HEALTHY.copy()
    FAULTS[name][1](host)
    return results(host)


def drawn(found: list[Result], *, everything: bool = False) -> str:
    console = Console(width=110, file=io.StringIO(), record=True)
    console.print(audit.draw(found, "h1", everything=everything))
    return console.export_text()


def test_a_category_and_an_id_choose_checks() -> None:
    ids = [check.check_id for check in audit.chosen(["storage", "node.ecc"])]
    assert ids[0] == "node.ecc"
    assert "storage.raid" in ids
    assert "pcie.link" not in ids
    assert "frontend.lookups" not in [check.check_id for check in audit.chosen(["frontend"])]
    assert [check.check_id for check in audit.chosen(["frontend.lookups"])] == ["frontend.lookups"]
    with pytest.raises(InputError, match="--only raid: expected software, node"):
        audit.chosen(["raid"])


def test_the_verdict_is_the_exit_code() -> None:
    assert audit.verdict(results())[0] == 0
    code, line = audit.verdict(with_fault("ECC"))
    assert (code, line.split(":")[0]) == (1, "not fit")
    code, line = audit.verdict(with_fault("no NTP"))
    assert (code, "1 warnings" in line) == (0, True)
    bare = RecordedHost({}, {})
    bare.denied = {"adjtimex", *READS}
    assert audit.verdict(results(bare))[0] == 2


def test_a_failed_check_is_shown_with_its_remedy() -> None:
    shown = drawn(with_fault("narrow PCIe"))
    assert "FAILED PCIe links have full width and speed (pcie.link): NIC 0000:17:00.0: x8 at" in shown
    assert "REPLACE: Reseat the card" in shown
    assert "PASSED" not in shown
    assert "1 failed" in shown
    assert "WARNING The system clock is synchronised" in drawn(with_fault("no NTP"))
    assert "PASSED RDMA ports are active" in drawn(results(), everything=True)


def test_json_has_every_check_and_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([], as_json_line=True, everything=False, host=HEALTHY) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["check"] for row in found["checks"]] == [
        each for each, check in CHECKS.items() if not check.active
    ]
    by_id = {row["check"]: row for row in found["checks"]}
    assert {each["subject"] for each in by_id["backend.port-state"]["findings"]} >= {"mlx5_0/1", "mlx5_3/1"}


def test_this_host_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["node"], as_json_line=True, everything=False) in (0, 1)
    memory = json.loads(capsys.readouterr().out)["checks"][0]
    assert memory["check"] == "node.memory"
    assert memory["status"] in ("PASSED", "FAILED")


def test_the_name_of_a_bundle_controls_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sos_commands").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text("gpu7\x1b[31m")
    audit.main((), as_json_line=False, everything=False, bundle=tmp_path)
    assert "Audit of gpu7\\x1b[31m" in capsys.readouterr().out


def test_the_host_of_a_bundle_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "gpu7" / "sos_commands" / "kernel"
    folder.mkdir(parents=True)
    (folder / "dmesg").write_text("[    9.000000] NVRM: Xid (PCI:0000:19:00): 79, fallen off the bus\n")
    assert audit.main((), as_json_line=True, everything=False, bundle=tmp_path / "gpu7") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["host"] == "gpu7"
    failed = [check["check"] for check in report["checks"] if check["status"] == "FAILED"]
    assert failed == ["kernel-log.xid"]
    with pytest.raises(InputError, match="expected a folder"):
        audit.main((), as_json_line=True, everything=False, bundle=tmp_path / "absent")


def test_a_missing_thing_is_shown_once_for_all_its_checks() -> None:
    shown = " ".join(drawn(results(RecordedHost({}, {})), everything=True).split())
    assert shown.count("this host has no RDMA device: backend.") == 1
    assert "backend.port-state, backend.port-rate, backend.link-counters and " in shown


def test_an_unknown_check_is_shown_with_its_help() -> None:
    host = HEALTHY.copy()
    host.denied.add("smartctl")
    shown = " ".join(drawn(results(host)).split())
    assert "MONITOR: Run it as root" in shown


def test_a_line_names_the_checks_that_only_root_can_make() -> None:
    host = HEALTHY.copy()
    host.denied |= {"smartctl", "ipmitool"}
    line = audit.for_root(results(host))
    assert line == "root could make 7 more checks: node.events, node.sensors, node.parts and 4 more"
    assert audit.for_root(results()) == ""


def test_unknown_checks_with_one_reason_share_a_line() -> None:
    host = HEALTHY.copy()
    host.denied.add("ipmitool")
    shown = " ".join(drawn(results(host)).split())
    assert "UNKNOWN ipmitool: Permission denied: node.events, node.sensors, node.parts and 2 more" in shown
    assert shown.count("Run it as root") == 1
