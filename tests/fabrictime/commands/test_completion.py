"""Names of the running log for the completion of a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from schemas.topics import LINK_HEALTH
from tests.fabrictime.commands.views.test_links import health, produce

ROOT = Path(__file__).resolve().parents[3]
LEAF, OTHER = "leaf31:swp3<>spine1:swp31", "leaf32:swp3<>spine1:swp32"


def completed(log: str, line: str) -> list[str]:
    """Return the names that a bash offers for the last word."""
    environment = os.environ | {
        "_FABRICTIME_COMPLETE": "complete_bash",
        "COMP_WORDS": f"fabrictime {line}",
        "COMP_CWORD": str(len(line.split())),
    }
    program = (
        "import sys; sys.argv[0] = 'fabrictime'; from fabrictime.commands.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.split()


def test_a_shell_completes_links_of_the_log_and_topics(log: str) -> None:
    produce(log, LINK_HEALTH, [health(LEAF, "DOWN"), health(OTHER, "UP")])
    assert completed(log, f"links --log {log} leaf3") == [LEAF, OTHER]
    assert completed(log, "tail fabric.alert") == ["fabric.alerts", "fabric.alert-notes"]
    assert completed("", "links --log 127.0.0.1:1 leaf3") == []
