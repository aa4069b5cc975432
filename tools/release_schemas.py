"""Release the schemas: add a line to schemas/released.jsonl for each schema that has changed.

Run it when a schema has changed (`python tools/release_schemas.py`), and commit the file. Readers accept
messages in every released schema, and tests check that today's schema and each released one read each other's
messages. So a released line is never changed or deleted. A line contains the fingerprint and the schema
without its docs, with the limits at its release. `--check` writes nothing and fails if a line is missing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from schemas import codec  # noqa: E402  (found only once the checkout is on the path)

RELEASED = ROOT / "schemas" / "released.jsonl"


def without_docs(node: Any) -> Any:
    """Return a schema without the docs of its records, enums and fields."""
    if isinstance(node, list):
        return [without_docs(part) for part in node]
    if isinstance(node, dict):
        return {key: without_docs(part) for key, part in node.items() if key != "doc"}
    return node


def line_of(name: str) -> str:
    """Return the line for the current schema of a record."""
    row = {"fingerprint": codec.fingerprint_of(name).hex(), "schema": without_docs(codec.raw_schema(name))}
    return json.dumps(row, separators=(",", ":")) + "\n"


def main(arguments: list[str]) -> int:
    """Write the missing lines; with `--check`, only list their records. Returns the exit code."""
    text = RELEASED.read_text(encoding="utf-8") if RELEASED.exists() else ""
    released = {json.loads(line)["fingerprint"] for line in text.splitlines()}
    missing = [name for name in codec.record_names() if codec.fingerprint_of(name).hex() not in released]
    for name in missing:
        print(f"{'missing' if '--check' in arguments else 'released'}: {name}")
    if "--check" in arguments:
        return 1 if missing else 0
    RELEASED.write_text(text + "".join(map(line_of, missing)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
