"""Builds the dashboards: `python -m grafana.build` writes the JSON in grafana/dashboards/."""

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

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"
DASHBOARDS: Final[Mapping[str, Callable[[], dashboard.Dashboard]]] = {
    "fabrictime-delays": delays,
    "fabrictime-clocks": clocks,
    "fabrictime-pipeline": pipeline,
    "fabrictime-fabric": fabric,
    "fabrictime-jobs": jobs,
    "fabrictime-actions": actions,
    "fabrictime-audit": audit,
}
"""Builder of each dashboard by its uid."""


def made(uid: str) -> str:
    """Return the JSON text of a dashboard. Raises KeyError for an unknown uid."""
    return (
        json.dumps(json.loads(JSONEncoder(sort_keys=True).encode(DASHBOARDS[uid]().build())), indent=1) + "\n"
    )


def committed(uid: str) -> dict[str, Any]:
    """Return a dashboard as it stands in grafana/dashboards/."""
    loaded: dict[str, Any] = json.loads((FOLDER / f"{uid}.json").read_text(encoding="utf-8"))
    return loaded


def main() -> int:
    """Write all dashboards. Returns the exit code."""
    for uid in DASHBOARDS:
        path = FOLDER / f"{uid}.json"
        path.write_text(made(uid), encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
