"""Write the software bill of materials of the locked packages, as CycloneDX 1.6.

`python tools/sbom.py FILE` writes JSON with name, version, hashes and licence of each package in
requirements.lock. Licences come from the installed packages. A test refuses licences outside of `ALLOWED`.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(?:\s*;\s*([^\\\n]+))?")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
CLASSIFIER = "License :: OSI Approved :: "
ALLOWED = re.compile(
    r"apache|\bmit\b|bsd|\bisc\b|python software foundation|\bpsf|mpl|mozilla|unlicense|cc0|zlib|0bsd|hpnd"
    r"|public domain|blueoak|cnri|eclipse public|epl",
    re.IGNORECASE,
)
"""Licences that allow use, change and distribution beside our Apache-2.0."""
REVIEWED = {
    "docutils": "public domain and BSD; the GPL concerns an Emacs mode that is not in the wheel",
    "crc32c": "LGPL 2.1 or later: a library of its own, loaded and not changed; users may replace it",
}
"""Packages with other licences, each with the reason why it may be used."""


@dataclass(frozen=True)
class Package:
    """A locked package. `licence` is empty if the package is not installed here or states none."""

    name: str
    version: str
    hashes: tuple[str, ...]
    licence: str


def packages(lock: Path = LOCK) -> list[Package]:
    """Return the packages of a lock file, with the licences of the installed ones."""
    blocks = re.split(r"\n(?=[A-Za-z0-9])", lock.read_text(encoding="utf-8"))
    rows = []
    for block in blocks:
        if pinned := PINNED.match(block):
            name, version = pinned[1], pinned[2]
            rows.append(Package(name, version, tuple(HASH.findall(block)), licence_of(name)))
    return rows


def licence_of(name: str) -> str:
    """Return the licence that an installed package states: expression, classifiers or text."""
    try:
        data: Any = metadata(name)
    except PackageNotFoundError:
        return ""
    if expression := data.get("License-Expression"):
        return str(expression)
    classifiers = [
        row.removeprefix(CLASSIFIER) for row in data.get_all("Classifier") or () if CLASSIFIER in row
    ]
    if classifiers:
        return ", ".join(classifiers)
    text = data.get("License") or ""
    return text.strip().splitlines()[0][:100] if text.strip() else ""


def unfit(rows: list[Package]) -> list[str]:
    """Return a line for each package whose licence is neither allowed nor reviewed."""
    return [
        f"{row.name} {row.version}: licence {row.licence!r}"
        for row in rows
        if not (ALLOWED.search(row.licence) and "General Public" not in row.licence)
        and row.name not in REVIEWED
    ]


def document(rows: list[Package]) -> dict[str, object]:
    """Return the CycloneDX document that lists these packages."""
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{row.name.lower()}@{row.version}",
            "name": row.name,
            "version": row.version,
            "purl": f"pkg:pypi/{row.name.lower()}@{row.version}",
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in row.hashes],
            **({"licenses": [{"license": {"name": row.licence}}]} if row.licence else {}),
        }
        for row in rows
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "fabrictime", "bom-ref": "fabrictime"}},
        "components": components,
    }


def main(arguments: list[str]) -> int:
    """Write the CycloneDX document to the file. Returns the exit code."""
    if len(arguments) != 1:
        print("sbom: expected the name of a file to write", file=sys.stderr)
        return 2
    rows = packages()
    for line in unfit(rows):
        print(line, file=sys.stderr)
    Path(arguments[0]).write_text(json.dumps(document(rows), indent=1) + "\n", encoding="utf-8")
    unknown = sum(not row.licence for row in rows)
    print(f"{len(rows)} packages, {unknown} without a stated licence here")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
