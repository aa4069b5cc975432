"""Makes the file tree of a package: a virtual environment in /opt/fabrictime, units, settings.

The environment of the agent holds the project's wheel and the agent's dependencies of `requirements.lock`,
without an extra. Its Python is that of the distribution, a declared dependency. Another processor's tree is
possible, because only wheels are unpacked.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.release.packages import Package
from tools.release.wheels import ROOT, platform_tag

PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The Python of the wheel, and so of the packages' host."""
PREFIX: Final = "opt/fabrictime"
DROPPED: Final = ("numpy/**/tests", "psutil/tests", "pyroute2/**/tests", "pyarrow/tests", "pyarrow/include")
"""Tests and headers of dependencies: a quarter of the agent's environment."""
COMMAND: Final = """#!/opt/fabrictime/bin/python -I
import sys

from fabrictime.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
"""
SOURCE_ONLY: Final = ("sdnotify",)
"""Dependencies without a wheel. They are pure Python, so the wheel that is built here fits each processor."""


def platforms(machine: str) -> Iterator[str]:
    """Yield the platform tags that a host of the packages accepts, as pip names them."""
    yield platform_tag(machine)
    for glibc in ("2_27", "2_24", "2_17"):
        yield f"manylinux_{glibc}_{machine}"
    yield f"manylinux2014_{machine}"


def make(tree: Path, package: Package, wheel: Path, machine: str) -> None:
    """Write a package's tree for a processor from the project's wheel. Raises SystemExit if pip fails."""
    environment = tree / PREFIX
    packages = environment / "lib" / f"python{PYTHON}" / "site-packages"
    packages.mkdir(parents=True)
    _install(packages, package, wheel, machine)
    for pattern in DROPPED:
        for folder in packages.glob(pattern):
            shutil.rmtree(folder)
    compileall.compile_dir(
        packages,
        quiet=2,
        stripdir=str(tree),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    for name, folder in (*package.files, (package.settings, "etc/fabrictime")):
        _write(tree / folder / name, package.text(name), 0o644)
    docs = tree / "usr/share/doc" / package.name
    _write(docs / "copyright", (ROOT / "LICENSE").read_text(encoding="utf-8"), 0o644)
    if package.base is None:
        _write_environment(tree, environment)
        _write_docs(docs)


def _write_environment(tree: Path, environment: Path) -> None:
    """Write the files that make the folder a virtual environment with the command."""
    (environment / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n", encoding="utf-8"
    )
    programs = environment / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(f"/usr/bin/python{PYTHON}")
    _write(programs / "fabrictime", COMMAND, 0o755)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/fabrictime").symlink_to("/opt/fabrictime/bin/fabrictime")


def _write_docs(docs: Path) -> None:
    pages = ROOT / "docs"
    for page in [pages / "fabrictime.toml", *sorted(pages.rglob("*.md"))]:
        _write(docs / page.relative_to(pages), page.read_text(encoding="utf-8"), 0o644)


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def _install(packages: Path, package: Package, wheel: Path, machine: str) -> None:
    """Unpack the wheels of a package and its dependencies for the processor `machine`."""
    with tempfile.TemporaryDirectory(prefix="fabrictime-wheels-") as folder:
        collect_wheels(Path(folder), package, machine)
        own = [wheel] if package.base is None else []
        wheels = map(str, [*own, *sorted(Path(folder).glob("*.whl"))])
        pip("install", machine, "--target", str(packages), "--no-compile", "--no-index", *wheels)
    shutil.rmtree(packages / "bin", ignore_errors=True)


def collect_wheels(folder: Path, package: Package, machine: str) -> None:
    """Download the wheels of a package's dependencies into a folder, and check the lock file's hashes."""
    entries = package.requirements()
    sources = "".join(entries.pop(name) for name in SOURCE_ONLY if name in entries)
    for command, text in (("download", "".join(entries.values())), ("wheel", sources)):
        if not text:
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".txt", prefix="fabrictime-lock-") as requirements:
            requirements.write(text)
            requirements.flush()
            pip(
                command,
                machine,
                "--require-hashes",
                "-r",
                requirements.name,
                "-d" if command == "download" else "-w",
                str(folder),
            )


def pip(command: str, machine: str, *arguments: str) -> None:
    """Run pip, with wheels of the processor `machine` unless it builds one.

    Raises SystemExit with pip's output if it fails.
    """
    chosen: list[str] = []
    if command != "wheel":
        chosen = ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON]
        chosen += [option for tag in platforms(machine) for option in ("--platform", tag)]
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "pip", command, "--quiet", "--no-deps"),
            *(*chosen, *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(
            f"{done.stdout}{done.stderr}\nfabrictime: pip {command} ended with {done.returncode}"
        )
