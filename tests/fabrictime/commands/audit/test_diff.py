"""`fabrictime audit diff` on files of two runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from fabrictime.audit.diff import diff
from fabrictime.audit.report import AuditReport
from fabrictime.audit.stored import as_json
from fabrictime.commands.audit.diff import draw, sentence
from fabrictime.commands.cli import app
from tests.fabrictime.audit.fleets import F, fact, report, result

MTU, NUMA = "backend.mtu", "software.numa-balancing"
BEFORE = report(
    [*(result(MTU, f"n{k}", facts=[fact("kernel", "6.5")]) for k in range(1, 9)), result(NUMA, "n1", F, "1")]
)
AFTER = report(
    [
        *(result(MTU, f"n{k}", F, "1500", facts=[fact("kernel", "6.8")]) for k in range(1, 4)),
        *(result(MTU, f"n{k}", facts=[fact("kernel", "6.5")]) for k in range(4, 8)),
        result(NUMA, "n1"),
    ]
)


def run(tmp_path: Path, *reports: AuditReport, more: tuple[str, ...] = ()) -> tuple[int, str]:
    paths = [tmp_path / f"{k}.json" for k in range(len(reports))]
    for path, each in zip(paths, reports, strict=True):
        path.write_text("".join(as_json(each)), encoding="utf-8")
    done = CliRunner().invoke(app, ["audit", "diff", *map(str, paths), *more])
    return done.exit_code, done.output


def test_the_difference_is_drawn_new_errors_first() -> None:
    console = Console(width=110, file=io.StringIO(), record=True)
    console.print(draw(diff(BEFORE, AFTER)))
    lines = [line.strip(" ├└─│") for line in console.export_text().splitlines()]
    assert lines == [
        "r1 to r1",
        "new error",
        "RDMA interfaces of like cards have the same MTU (backend.mtu)  3 hosts n[1-3]",
        "passed > error: 1500",
        "monitor: ip link set dev INTERFACE mtu MTU, and in the network's configuration",
        "fixed",
        "NUMA balancing is off (software.numa-balancing)  n1",
        "warning: 1 > passed",
        "values",
        "kernel (backend.mtu): 6.5 > 6.8  3 hosts n[1-3]",
        "only in r1: n8",
        "r1 since r1: 3 new errors, 0 new warnings, 1 fixed",
    ]


def test_the_exit_code_is_1_if_there_is_a_new_error(tmp_path: Path) -> None:
    assert run(tmp_path, BEFORE, AFTER)[0] == 1
    assert run(tmp_path, AFTER, BEFORE)[0] == 0
    code, output = run(tmp_path, BEFORE, BEFORE)
    assert (code, "r1: no change since r1" in output) == (0, True)


def test_json_has_every_change(tmp_path: Path) -> None:
    code, output = run(tmp_path, BEFORE, AFTER, more=("--json",))
    found = json.loads(output)
    assert (code, found["checks"][0]["change"], found["checks"][0]["hosts"]) == (
        1,
        "new error",
        ["n1", "n2", "n3"],
    )
    assert sentence(diff(BEFORE, AFTER)).startswith("r1 since r1")


def test_a_run_that_cannot_be_read_is_exit_code_2(tmp_path: Path) -> None:
    assert run(tmp_path, BEFORE)[0] == 2
    done = CliRunner().invoke(app, ["audit", "diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert (done.exit_code, "a.json: No such file" in done.output) == (2, True)
