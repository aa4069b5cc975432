"""Makes a later version of fabrictime from the running one: its packages, with a further field in each record
and a further symbol in each enum of some schemas.

A folder holds the code that runs, and one each of the former and the later version. An upgrade renames the
folders, as a package manager replaces files: running processes go on, and restarted ones run the other code.
"""

from __future__ import annotations

import compileall
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from schemas import codec

ROOT: Final = Path(__file__).resolve().parents[3]
"""The checkout, or the site-packages folder of an installed wheel."""
PACKAGES: Final = (
    "schemas",
    "native",
    "producers",
    "streams",
    "actuators",
    "grafana",
    "fabrictime",
    "clients",
)
RECORDS: Final = (
    "Alert",
    "ClockFits",
    "ClockOffsets",
    "ContentionWindow",
    "Decision",
    "Diagnosis",
    "Fallbacks",
    "FlowRoutes",
    "LinkHealth",
    "PathMaps",
    "PolicyCycles",
    "ProbeSchedule",
)
"""The records of workers and stages that no native code encodes: such code writes one schema only."""
FIELD: Final = {"name": "later", "type": "string", "default": ""}
SYMBOL: Final = "LATER"


def later_schema(schema: Any) -> Any:
    """Return a schema in which each record has a further field, and each enum a further symbol."""
    if isinstance(schema, list):
        return [later_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: later_schema(part) if key in ("type", "items") else part for key, part in schema.items()}
    if schema.get("type") == "enum":
        changed["symbols"] = [*schema["symbols"], SYMBOL]
    if schema.get("type") == "record":
        changed["fields"] = [*map(later_schema, schema["fields"]), FIELD]
    return changed


class LaterSchemas:
    """Implements `codec.Registry` with the later schemas, with which the bench reads both versions."""

    def __init__(self) -> None:
        schemas = [later_schema(codec.raw_schema(record)) for record in RECORDS]
        self._schemas: dict[bytes, Mapping[str, Any]] = {
            codec.fingerprint_of_schema(schema): schema for schema in schemas
        }

    def id_of(self, name: str, schema: Mapping[str, Any]) -> None:
        """Return None, since messages carry fingerprints instead of ids."""

    def schema_of(self, schema_id: int | bytes) -> Mapping[str, Any]:
        """Return the schema with this fingerprint. Raises KeyError."""
        if isinstance(schema_id, int):
            raise KeyError(f"schema {schema_id}: no schema registry is set")
        return self._schemas[schema_id]


def _change_schemas(folder: Path) -> None:
    """Write the later schemas, and release them, as `tools/release_schemas.py` does in a checkout."""
    with (folder / "released.jsonl").open("a", encoding="utf-8") as released:
        for record in RECORDS:
            schema = later_schema(codec.raw_schema(record))
            (folder / f"{record}.avsc").write_text(json.dumps(schema), encoding="utf-8")
            row = {"fingerprint": codec.fingerprint_of_schema(schema).hex(), "schema": schema}
            released.write(f"{json.dumps(row)}\n")


class Versions:
    """Two versions of the code in a folder, only one of which runs at a time."""

    def __init__(self, folder: Path) -> None:
        """Copy the running code twice, and change the schemas of the later version."""
        self.current = folder / "current"
        """The code that a process runs which is started now."""
        self._former, self._later = folder / "former", folder / "later"
        for target in (self.current, self._later):
            for name in PACKAGES:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, target / name)
        _change_schemas(self._later / "schemas")
        for target in (self.current, self._later):  # as packages and pip do
            compileall.compile_dir(target, quiet=2)

    def upgrade(self) -> None:
        """Make processes that start from now on run the later version."""
        self.current.rename(self._former)
        self._later.rename(self.current)

    def roll_back(self) -> None:
        """Make processes that start from now on run the former version."""
        self.current.rename(self._later)
        self._former.rename(self.current)
