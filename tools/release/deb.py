"""Builds a package for Debian and its relatives from its file tree."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from tools.release import tree
from tools.release.packages import SCRIPTS, Package
from tools.release.wheels import ROOT

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def version() -> str:
    """Return the project's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def control(package: Package, machine: str, size_kib: int) -> str:
    """Return the text of a package's control file."""
    major, minor = map(int, tree.PYTHON.split("."))
    needs = f"python3 (>= {tree.PYTHON}), python3 (<< {major}.{minor + 1}), python{tree.PYTHON}"
    if package.base is not None:
        needs = f"{package.base.name} (= {version()})"
    description = "\n".join(f" {line}" for line in package.description.splitlines())
    return f"""Package: {package.name}
Version: {version()}
Architecture: {ARCHITECTURES[machine]}
Maintainer: fabrictime developers <noreply@localhost>
Installed-Size: {size_kib}
Depends: {needs}, libc6 (>= 2.28), passwd
Recommends: systemd, iproute2, ethtool
Section: net
Priority: optional
Description: {package.summary}
{description}
"""


def build(package: Package, wheel: Path, machine: str, folder: Path) -> Path:
    """Build a package into `folder` and return its path. Raises SystemExit."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{package.name}_{version()}_{ARCHITECTURES[machine]}.deb"
    with tempfile.TemporaryDirectory(prefix="fabrictime-deb-") as work:
        root = Path(work) / "root"
        root.mkdir(mode=0o755)
        tree.make(root, package, wheel, machine)
        _write_control(root, package, machine)
        _run(
            [
                "dpkg-deb",
                "--root-owner-group",
                "-Zxz",
                "-z1",
                "--threads-max=2",
                "--build",
                str(root),
                str(file),
            ]
        )
    return file


def _write_control(root: Path, package: Package, machine: str) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    size_kib = sum(path.stat().st_size for path in files) // 1024
    sums = [
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(root)}\n"
        for path in files
    ]
    folder = root / "DEBIAN"
    folder.mkdir(mode=0o755)
    (folder / "control").write_text(control(package, machine, size_kib), encoding="utf-8")
    (folder / "conffiles").write_text(f"/etc/fabrictime/{package.settings}\n", encoding="utf-8")
    (folder / "md5sums").write_text("".join(sums), encoding="utf-8")
    for name in SCRIPTS:
        (folder / name).write_text(package.text(name), encoding="utf-8")
        (folder / name).chmod(0o755)


def _run(command: list[str]) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "1700000000")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\nfabrictime: {command[0]} ended with {done.returncode}")
