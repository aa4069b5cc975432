"""The `audit` command: its choice of checks, its report, its exit code."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from fabrictime.commands import audit
from fabrictime.testbed.audit.faults import FAULTS
from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost
from fabrictime.testbed.audit.recorded_network import READS
from producers.audit.base import Result, run_check
from producers.audit.checks import CHECKS


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
    with pytest.raises(ValueError, match="--only raid: expected software, node"):
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
