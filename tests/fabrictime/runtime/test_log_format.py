"""Logs as JSON: one object a line, with the ids that join a decision, its action and its alert."""

import asyncio
import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.runtime.log_format import JsonFormatter, message_of
from schemas.log_fields import log_fields
from schemas.topics import ALERTS, DECISIONS
from streams.links.stage import LinksStage
from streams.runtime.faust.publishing import Publisher
from streams.runtime.operator import Operator, Output
from tests.records import make, make_part
from tests.streams.runtime.fake_context import FakeContext


@pytest.fixture
def lines():
    """The lines that all loggers write, as JSON objects."""
    output, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(output), root.level
    handler.setFormatter(JsonFormatter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in output.getvalue().splitlines()]
    root.removeHandler(handler)
    root.setLevel(level)


def test_a_line_has_time_level_logger_and_message(lines):
    logging.getLogger("producers.probe").warning("%s: %d lost\nand more", "h1/eth0", 3)
    [line] = lines()
    assert line["message"] == "h1/eth0: 3 lost\nand more"
    assert (line["level"], line["logger"]) == ("WARNING", "producers.probe")
    assert line["time"].endswith("Z")


def test_an_exception_keeps_its_traceback_in_the_line(lines):
    try:
        raise ValueError("no such link")
    except ValueError:
        logging.getLogger("x").exception("failed")
    [line] = lines()
    assert "ValueError: no such link" in line["traceback"]


def test_decision_and_alert_of_one_cable_share_its_name(lines):
    reason = make_part("Decision", "Reason", kind="DOWN", subject="a:1>b:1")
    decision = make("Decision", decision_id="s/1/2", reason=reason)
    alert = make("Alert", alert_id="LINK_DOWN:a:1>b:1:5", subject="a:1>b:1")
    outputs = [
        Output(DECISIONS, "h1", decision, text="REROUTE h1/eth0"),
        Output(ALERTS, "a:1>b:1", alert, text="RAISED"),
    ]

    async def publish():
        publisher = Publisher(FakeContext(), LinksStage(), DECISIONS)
        sent = []
        await publisher.publish(Operator(), outputs, sent)
        await asyncio.gather(*sent)

    asyncio.run(publish())
    decided, alerted = lines()
    assert decided["decision_id"] == "s/1/2"
    assert decided["subject"] == alerted["subject"] == "a:1>b:1"
    assert alerted["alert_id"] == alert["alert_id"]


def test_an_action_has_the_id_of_its_decision():
    report = make("ActionReport", decision_id="s/1/2", outcome="APPLIED")
    assert log_fields(report)["decision_id"] == "s/1/2"
    assert log_fields(None) == {}


@given(st.text())
def test_the_message_of_any_line_is_one_string(line):
    assert isinstance(message_of(line), str)


def test_a_fault_is_the_message_of_the_last_line():
    assert message_of('{"message": "log: port 5 is taken", "level": "ERROR"}') == "log: port 5 is taken"
    assert message_of('{"level": "ERROR"}') == '{"level": "ERROR"}'
    assert message_of("fabrictime: plain") == "fabrictime: plain"
