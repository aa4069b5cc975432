"""Licences of the locked packages, and the bill of materials."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tools import sbom


def test_every_locked_package_is_listed_with_its_hashes(tmp_path: Path) -> None:
    assert sbom.main([str(tmp_path / "sbom.json")]) == 0
    document = json.loads((tmp_path / "sbom.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    pinned = re.findall(r"^([A-Za-z0-9._-]+)==", sbom.LOCK.read_text(), re.MULTILINE)
    assert [row["name"] for row in document["components"]] == pinned
    assert all(row["hashes"] for row in document["components"])
    assert len({row["bom-ref"] for row in document["components"]}) == len(pinned)


def test_every_licence_is_allowed_or_reviewed() -> None:
    """Packages that are not installed here are not checked."""
    rows = [row for row in sbom.packages() if row.licence]
    assert len(rows) > 100
    assert sbom.unfit(rows) == []
    assert set(sbom.REVIEWED) <= {row.name for row in sbom.packages()}


def test_a_licence_that_binds_our_own_code_is_unfit() -> None:
    texts = (
        "GNU General Public License v3 (GPLv3)",
        "AGPL-3.0-only",
        "Proprietary",
        "MIT, GNU General Public License",
    )
    rows = [sbom.Package("some", "1", (), text) for text in texts]
    assert len(sbom.unfit(rows)) == len(texts)
    assert sbom.unfit([sbom.Package("some", "1", (), "MIT OR Apache-2.0")]) == []
