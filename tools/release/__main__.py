"""Builds a release into dist/: `python -m tools.release [PART]...`, from a checkout.

PART is `wheels`, `deb`, `rpm` or `offline`; without PART, all are built. Each later part uses the wheels of
the first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.release import deb, offline, rpm, wheels
from tools.release.packages import PACKAGES

DIST: Final = wheels.ROOT / "dist"
WORK: Final = wheels.ROOT / "build" / "release"
PARTS: Final = ("wheels", "deb", "rpm", "offline")


def main(parts: Sequence[str]) -> None:
    """Build the parts, and print each file. Raises SystemExit for an unknown part."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise SystemExit(f"fabrictime: {unknown[0]}: expected {', '.join(PARTS)}")
    selected = parts or PARTS
    for machine in wheels.MACHINES:
        if "wheels" in selected:
            print(wheels.build(machine, DIST, WORK / machine), flush=True)
        for part in ("deb", "rpm"):
            if part in selected:
                _package(part, machine)
        if "offline" in selected:
            print(offline.collect(_wheel(machine), machine, DIST / "offline"), flush=True)


def _package(part: str, machine: str) -> None:
    if part == "rpm" and not rpm.is_available():
        print("rpm: not built, rpmbuild is not installed (Debian: apt-get install rpm)", flush=True)
        return
    build = deb.build if part == "deb" else rpm.build
    for package in PACKAGES:
        if machine in package.machines:
            print(build(package, _wheel(machine), machine, DIST), flush=True)


def _wheel(machine: str) -> Path:
    wheel = max(DIST.glob(f"fabrictime-*-{wheels.platform_tag(machine)}.whl"), default=None)
    if wheel is None:
        raise SystemExit(f"fabrictime: no wheel for {machine} in {DIST}: build the part `wheels` first")
    return wheel


if __name__ == "__main__":
    main(sys.argv[1:])
