"""The table of alerts with their notes."""

import time

from fabrictime.commands.alert import table
from fabrictime.commands.alert.notes import AlertNotes
from tests.actuators.notify.alerts import S, alert, note
from tests.embedded_log import EmbeddedLog


def test_an_empty_list_is_a_sentence_and_notes_about_no_alert_are_listed_on_request(tmp_path, capsys):
    with EmbeddedLog(tmp_path / "log", partitions=1) as log:
        now_ns = time.time_ns()
        window = note(
            "rack:r1", scope="RACK", pattern="r1", silent_from_ns=now_ns, silent_until_ns=now_ns + S
        )
        log.put("fabric.alert-notes", "rack:r1", window)
        notes = AlertNotes(log.bootstrap)
        table.show(notes, everything=False)
        assert capsys.readouterr().out == "no alert is active\n"
        table.show(notes, everything=True)
        assert "note rack:r1: from " in capsys.readouterr().out
        assert table.as_json(notes, everything=True) == {"alerts": [], "notes": [window]}
        log.put("fabric.alerts", (record := alert("h1"))["alert_id"], record)
        table.show(AlertNotes(log.bootstrap), everything=False)
        assert "AGENT  h1" in capsys.readouterr().out
