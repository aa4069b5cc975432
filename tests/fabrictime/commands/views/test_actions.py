"""`actions` on a real log: decisions, outcomes and suppressed actions."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from schemas.topics import (
    ACTIONS,
    CONFIG,
    DECISIONS,
    POLICY_CYCLES,
)
from tests.fabrictime.commands.action_records import (
    CABLE,
    S,
    action,
    config,
    decision,
    fabrictime,
    produce,
    rounds,
)

ROOT = Path(__file__).resolve().parents[4]


def test_actions_lists_decisions_outcomes_and_suppressed_actions(log):
    empty = fabrictime(log, "actions")
    assert empty.exit_code == 0, empty.stderr
    assert "; the default" in empty.stdout
    assert "nothing was decided" in empty.stdout
    assert "the policy has not published its suppressed actions" in empty.stdout
    now = time.time_ns()
    first = decision(1, "h1/b/sock:1", now - 3 * S)
    second = decision(2, "h2/b/sock:2", now - 2 * S, "COLLISION", "fabric/leaf1:swp3>spine1:swp1/77")
    third = decision(3, "h3/b/sock:3", now - 4 * S)
    repair = action(decision(0, "h4/b/sock:4", now - S, decision_id="h4/reflex/1"), "LOCAL_REPAIR", epoch=0)
    produce(
        log,
        (CONFIG, "*", config()),
        (DECISIONS, "h1", first),
        (DECISIONS, "h2", second),
        (DECISIONS, "h3", third),
        (ACTIONS, "h1", action(first, "APPLIED")),
        (ACTIONS, "h1", action(first, "DUPLICATE")),
        (ACTIONS, "h2", action(second, "FAILED", detail="no such socket")),
        (ACTIONS, "h4", repair),
        (POLICY_CYCLES, "fabric", rounds(9, [("h1/b/sock:1", "RESTORE", "NO_BETTER_PATH", f"{CABLE}/5")])),
    )
    found = json.loads(fabrictime(log, "actions", "--json").stdout)
    assert found["mode"]["act"] is True
    assert found["mode"]["by"] == "ann@ops"
    assert [(d["flow_id"], d["outcome"]) for d in found["decisions"]] == [
        ("h4/b/sock:4", "LOCAL_REPAIR"),
        ("h2/b/sock:2", "FAILED"),
        ("h1/b/sock:1", "APPLIED"),
        ("h3/b/sock:3", "UNANSWERED"),
    ]
    assert found["decisions"][2]["outcomes"] == ["APPLIED", "DUPLICATE"]
    assert [(h["cause"], h["reason_text"]) for h in found["suppressed"]] == [
        ("NO_BETTER_PATH", "leaf1:swp3 ⇄ spine1:swp1 has recovered")
    ]
    moved = next(each for each in found["limits"] if each["limit"].startswith("flows"))
    assert (moved["used"], moved["max"]) == (4, 20)
    text = fabrictime(log, "actions").stdout
    for fragment in (
        "ACT: decisions are carried out",
        "1 APPLIED, 1 LOCAL_REPAIR, 1 FAILED, 1 UNANSWERED",
        "port 50001 → 50002",
        "flows collide at leaf1:swp3 → spine1:swp1 (no such socket)",
        "1 suppressed",
        "no other path is better",
    ):
        assert fragment in text
    assert "sock:2" not in fabrictime(log, "actions", "sock:1").stdout
    suppressed = json.loads(fabrictime(log, "actions", "--suppressed", "--json").stdout)
    assert "decisions" not in suppressed
    assert (
        "within"
        not in fabrictime(log, "actions", "--suppressed").stdout.partition("\n")[2].partition("\n")[2]
    )
    assert fabrictime(log, "actions", "--since", "soon").exit_code == 2


def test_watch_prints_one_line_for_each_event(log):
    child = subprocess.Popen(
        [sys.executable, "-m", "fabrictime", "actions", "sock:71", "--watch", "--log", log],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        made = decision(71, "h7/b/sock:71", time.time_ns(), expires_at_ns=time.time_ns() + 60 * S)
        produce(log, (DECISIONS, "h7", made))
        assert child.stdout is not None
        line = child.stdout.readline()
        assert "WAITING h7/b/sock:71: move, port 50001 → 50002; leaf1:swp3 ⇄ spine1:swp1 is down" in line
        produce(
            log,
            (ACTIONS, "h7", action(made, "APPLIED")),
            (POLICY_CYCLES, "fabric", rounds(10, [("h7/b/sock:71", "REROUTE", "COOL_DOWN", f"{CABLE}/6")])),
        )
        assert "APPLIED h7/b/sock:71" in child.stdout.readline()
        assert "HELD h7/b/sock:71: move; the flow moved recently" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 0
    finally:
        child.kill()
        child.communicate()
