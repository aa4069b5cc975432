"""`report` writes the fleet in one file, which shows what `top` shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from fabrictime.commands.cli import app
from fabrictime.commands.overview.report import page, tables
from fabrictime.commands.overview.top import as_record, draw
from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.health import overview
from fabrictime.state.overview_reader import View
from schemas.topics import ALERTS
from tests.fabrictime.fill import fill, fill_health

S = 1_000_000_000


def view_of(state: FabricState, now_ns: int) -> View:
    return View(overview(state, Verdict(), now_ns), now_ns)


def drawn(view: View) -> str:
    from rich.console import Console

    console = Console(width=250)
    with console.capture() as capture:
        console.print(draw(view, 2))
    return capture.get()


def test_nothing_is_measured_of_an_empty_fleet(state: FabricState, fabric: Any) -> None:
    view = view_of(state, fabric.now_ns)
    assert drawn(view).splitlines()[0].startswith("Nothing is measured yet")
    assert [table.rows for table in tables(state, view, 600.0)] == [[]] * 5
    assert "No problem is known now." in page(state, view, 600.0)


def test_a_dead_link_stands_in_all_forms_and_old_alerts_in_none(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    dead = fabric.links()[0]
    fill_health(state, fabric, dead, "DOWN")
    old = fabric.alert(fabric.cable(fabric.links()[2]), "cleared long ago", state="CLEARED")
    old |= {"raised_ns": fabric.now_ns - 7200 * S, "cleared_ns": fabric.now_ns - 7000 * S}
    fill(state, (ALERTS.name, old["alert_id"], old))
    view = view_of(state, fabric.now_ns)
    [problem] = as_record(view)["problems"]
    assert (problem["problem"], problem["severity"]) == ("Link down", "CRITICAL")
    assert problem["place"] in drawn(view)
    text = page(state, view, 600.0)
    assert problem["place"] in text
    assert "cleared long ago" not in text
    assert "cleared long ago" in page(state, view, 3 * 3600.0)
    assert "http" not in text.replace("http-equiv", "")  # the file loads nothing


def test_texts_of_records_are_escaped_in_the_file(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    hostile = fabric.alert(fabric.cable(fabric.links()[0]), "<script>alert(1)</script>")
    fill(state, (ALERTS.name, hostile["alert_id"], hostile))
    text = page(state, view_of(state, hostile["raised_ns"]), 600.0)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_report_writes_one_file(fleet_log: str, tmp_path: Path) -> None:
    path = tmp_path / "ticket.html"
    done = run("report", "5m", "--output", str(path), "--log", fleet_log)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{path}: ")
    assert "leaf31:swp3 ⇄ spine1:swp31" in path.read_text(encoding="utf-8")
    assert run("report", "2h", "--log", fleet_log).stderr.startswith("fabrictime: 2h: expected at most 1h")
