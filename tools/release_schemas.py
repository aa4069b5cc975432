"""Release the schemas: keep a copy of each under schemas/released/, as NAME.<fingerprint>.avsc.

Run when a schema has changed (`python tools/release_schemas.py`) and commit what it writes. Readers take
every released writer, and tests hold each one readable by today's schema and the other way round; so a
released file is never changed or deleted. `--check` writes nothing and fails where a copy is missing.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from schemas import codec  # noqa: E402  (found only once the checkout is on the path)


def main(arguments: list[str]) -> int:
    """Write, or with `--check` name, the copies that are missing. Returns the exit code."""
    released = ROOT / "schemas" / "released"
    missing = {}
    for path in sorted((ROOT / "schemas").glob("*.avsc")):
        copy = released / f"{path.stem}.{codec.fingerprint_of(path.stem).hex()}.avsc"
        if not copy.exists():
            missing[copy] = path.read_text(encoding="utf-8")
    for copy, text in missing.items():
        if "--check" not in arguments:
            released.mkdir(exist_ok=True)
            copy.write_text(text, encoding="utf-8")
        print(f"{'missing' if '--check' in arguments else 'released'}: {copy.relative_to(ROOT)}")
    return 1 if missing and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
