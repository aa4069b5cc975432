"""Make the table of the Helm chart's values, for docs/kubernetes.md: names, defaults and descriptions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).resolve().parent.parent / "docker/helm/fabrictime"
HEAD: Final = "| value | default | meaning |\n|---|---|---|\n"
LONG: Final = 40
"""A longer default is not shown: values.yaml has it."""


def rows(
    schema: Mapping[str, Any], values: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and description of each value that the schema describes."""
    for key, part in schema["properties"].items():
        name = f"{path}{key}"
        if "properties" in part:
            yield from rows(part, values.get(key, {}), f"{name}.")
        elif key in values:
            yield name, json.dumps(values[key]), part["description"]


def values_table() -> str:
    """Return the table of the chart's values in Markdown."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    lines = []
    for name, default, text in rows(schema, values):
        shown = f"`{default}`" if len(default) <= LONG else "see values.yaml"
        lines.append(f"| `{name}` | {shown} | {text} |\n")
    return HEAD + "".join(lines)
