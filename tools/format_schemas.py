"""Format the `.avsc` files: one line for each field, and names for the ranges of `schemas/ranges.py`.

`python tools/format_schemas.py` writes the files; `--check` writes nothing and fails if one is not formatted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from schemas.ranges import RANGES  # noqa: E402 (the checkout is on the path only now)

NAMES: dict[tuple[object, object], str] = {limits: name for name, limits in RANGES.items()}


def with_range_names(node: Any) -> Any:
    """Return a schema with the names of ranges in place of their limits."""
    if isinstance(node, list):
        return [with_range_names(part) for part in node]
    if not isinstance(node, dict):
        return node
    named: dict[str, Any] = {}
    name = NAMES.get((node.get("min"), node.get("max")))
    for key, part in node.items():
        if name is None or key not in ("min", "max"):
            named[key] = with_range_names(part)
        else:
            named["range"] = name
    return named


def text_of(schema: Any) -> str:
    """Return the formatted text of a schema's file."""
    return _dump(with_range_names(schema), 1) + "\n"


def _dump(node: Any, depth: int) -> str:
    if isinstance(node, list):
        return f"[{', '.join(_dump(part, depth) for part in node)}]"
    if not isinstance(node, dict):
        return json.dumps(node, ensure_ascii=False)
    parts = (
        f'"{key}": {_fields(part, depth) if key == "fields" else _dump(part, depth)}'
        for key, part in node.items()
    )
    return f"{{{', '.join(parts)}}}"


def _fields(fields: list[Any], depth: int) -> str:
    indent = "  " * depth
    lines = ",\n".join(indent + _dump(field, depth + 1) for field in fields)
    return f"[\n{lines}\n{indent[2:]}]"


def main(arguments: list[str]) -> int:
    """Write the files that are not formatted; with `--check`, only list them. Return the exit code."""
    others = []
    for path in sorted((ROOT / "schemas").glob("*.avsc")):
        current = path.read_text(encoding="utf-8")
        text = text_of(json.loads(current))
        if text != current:
            others.append(path.name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    if others and "--check" in arguments:
        print(f"{', '.join(others)}: run python tools/format_schemas.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
