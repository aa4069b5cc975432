"""Builds the dashboards: `python -m grafana.build [FOLDER]` writes JSON, by default to grafana/dashboards/.

The package's build runs it. Its imports are requirements of the build only, not of the installed package.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana.boards.actions import actions
from grafana.boards.audit import audit
from grafana.boards.clocks import clocks
from grafana.boards.delays import delays
from grafana.boards.fabric import fabric
from grafana.boards.jobs import jobs
from grafana.boards.pipeline import pipeline
from grafana.dashboard_files import FOLDER, write_all

DASHBOARDS: Final[Mapping[str, Callable[[], dashboard.Dashboard]]] = {
    "fabrictime-delays": delays,
    "fabrictime-clocks": clocks,
    "fabrictime-pipeline": pipeline,
    "fabrictime-fabric": fabric,
    "fabrictime-jobs": jobs,
    "fabrictime-actions": actions,
    "fabrictime-audit": audit,
}
"""Function that builds each dashboard, by the dashboard's uid."""


def made(uid: str) -> dict[str, Any]:
    """Build the dashboard with this uid, and return it as values for JSON.

    Raises KeyError for an unknown uid.
    """
    dashboard_json: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(DASHBOARDS[uid]().build()))
    return dashboard_json


def main(arguments: list[str]) -> int:
    """Write all dashboards into the folder that the arguments name. Returns the exit code."""
    folder = Path(arguments[0]) if arguments else FOLDER
    for path in write_all(folder, {uid: made(uid) for uid in DASHBOARDS}):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
