"""Builds a package for Red Hat and its relatives from the same file tree as the Debian package."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tools.release import tree
from tools.release.deb import version
from tools.release.packages import Package

SCRIPTS: Final = {"%post": "postinst", "%preun": "prerm", "%postun": "postrm"}
RELEASE: Final = "1"


def is_available() -> bool:
    """Return whether rpmbuild is installed."""
    return shutil.which("rpmbuild") is not None


def spec(package: Package, root: Path) -> str:
    """Return the text of a package's spec file, which packs the files below `root` unchanged."""
    scripts = "\n".join(f"{section}\n{package.text(name)}" for section, name in SCRIPTS.items())
    base = package.base
    needs = f"python{tree.PYTHON}" if base is None else f"{base.name} = {version()}-{RELEASE}"
    paths = sorted(path for path in root.rglob("*") if path.is_symlink() or path.is_file())
    listed = [f"/{path.relative_to(root)}" for path in paths]
    files = "\n".join(
        f'%config(noreplace) "{path}"' if path.startswith("/etc/") else f'"{path}"' for path in listed
    )
    return f"""Name: {package.name}
Version: {version()}
Release: {RELEASE}
Summary: {package.summary}
License: Apache-2.0
Requires: {needs}, shadow-utils
AutoReqProv: no
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global _build_id_links none
%description
{package.description}
%install
cp -a "{root}/." "%{{buildroot}}/"
%files
%defattr(-,root,root)
{files}
{scripts}
"""


def build(package: Package, wheel: Path, machine: str, folder: Path) -> Path:
    """Build a package into `folder` and return its path. Raises SystemExit."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fabrictime-rpm-") as work:
        root = Path(work) / "root"
        root.mkdir()
        tree.make(root, package, wheel, machine)
        file = Path(work) / f"{package.name}.spec"
        file.write_text(spec(package, root), encoding="utf-8")
        command = ["rpmbuild", "-bb", "--quiet", f"--target={machine}", f"--define=_topdir {work}/rpm"]
        command += ["--define=_binary_payload w3.zstdio", "--nodeps", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}\nfabrictime: rpmbuild ended with {done.returncode}")
        (built,) = (Path(work) / "rpm" / "RPMS").rglob("*.rpm")
        return Path(shutil.move(built, folder / built.name))
