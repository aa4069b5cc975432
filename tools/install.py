"""Install the locked packages into this environment, and compile native/ at the same time.

`make` runs it with the environment's own Python. `run` installs what a run needs and compiles; `all` installs
every locked package. The packages that the compilation needs come first; it runs while the others are
fetched. The packages and their hashes are in `requirements.lock`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TextIO

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "requirements.lock"
SHOW_S: Final = 15.0
"""Time between two lines of progress if the output is no terminal."""
PIP_OPTIONS: Final = (
    "--no-deps",  # the lock file has them all
    "--require-hashes",
    "--progress-bar=off",
    "--no-color",
    "--disable-pip-version-check",
)
Entries = Mapping[str, str]
"""Entries of the lock file, by package."""


def entries_of(lock: str) -> Entries:
    """Split the text of a lock file into the entries of its packages."""
    starts = list(re.finditer(r"^([a-z0-9][a-z0-9._-]*)(?:\[[^\]]*\])?==", lock, flags=re.MULTILINE))
    ends = [start.start() for start in starts[1:]] + [len(lock)]
    return {start[1]: lock[start.start() : end] for start, end in zip(starts, ends, strict=True)}


def needed_by(names: Iterable[str], entries: Entries) -> set[str]:
    """Return the packages `names` with all their dependencies, from the lock file's comments (`# via`)."""
    needs: dict[str, set[str]] = {}
    for package, entry in entries.items():
        for line in entry.partition("# via")[2].splitlines():
            needs.setdefault(line.strip(" #"), set()).add(package)
    packages: set[str] = set()
    waiting = [name for name in names if name in entries]
    while waiting:
        package = waiting.pop()
        if package not in packages:
            packages.add(package)
            waiting += needs.get(package, ())
    return packages


def names_of(extras: Iterable[str], project: Path = ROOT / "pyproject.toml") -> set[str]:
    """Return the packages that pyproject.toml lists for some extras; `""` means its dependencies."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    by_extra: dict[str, list[str]] = {"": table["dependencies"], **table["optional-dependencies"]}
    lines = (line for extra in extras for line in by_extra[extra])
    return {re.split(r"[^A-Za-z0-9._-]", line)[0].lower() for line in lines}


class Progress:
    """Shows how many packages are fetched and how many steps of the compiler are done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._shown_s = stream, time.monotonic()
        self.parts: dict[str, str] = {}
        self._lock = threading.Lock()

    def set(self, part: str, state: str) -> None:
        """Set the state of one part, such as the packages, and display all parts."""
        with self._lock:
            self.parts[part] = state
            line = "fabrictime: " + ", ".join(f"{name} {value}" for name, value in self.parts.items())
            if self._stream.isatty():
                print(f"\r{line:<78}", end="", file=self._stream, flush=True)
            elif time.monotonic() >= self._shown_s + SHOW_S:
                self._shown_s = time.monotonic()
                print(line, file=self._stream, flush=True)

    def end(self) -> None:
        """End the line of progress on a terminal."""
        if self._stream.isatty() and self.parts:
            print(file=self._stream, flush=True)


def install(packages: set[str], entries: Entries, progress: Progress) -> None:
    """Install packages and check the lock file's hashes. If pip fails, exit with its output."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", prefix="fabrictime-lock-") as subset:
        subset.writelines(entries[package] for package in sorted(packages))
        subset.flush()
        command = [sys.executable, "-W", "ignore", "-m", "pip", "install", *PIP_OPTIONS, "-r", subset.name]
        count = 0

        def note(line: str) -> None:
            nonlocal count
            count += line.startswith(("Collecting ", "Requirement already satisfied"))
            is_last = line.startswith("Installing ")
            progress.set("packages", f"{count} of {len(packages)}" + (", installing" if is_last else ""))

        run(command, note)


def compile_native(progress: Progress) -> None:
    """Compile native/. If that fails, exit with the compiler's output."""

    def note(line: str) -> None:
        step = re.match(r"\[(\d+)/(\d+)\]", line)
        if step:
            progress.set("compiled", f"{step[1]} of {step[2]} files")

    run([sys.executable, str(ROOT / "tools" / "build_native.py"), "--verbose"], note)


def run(command: Sequence[str], note: Callable[[str], None]) -> None:
    """Run a command and pass each line of output to `note`. Raises SystemExit with the output if it fails."""
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            lines.append(line)
            note(line)
    if process.returncode:
        raise SystemExit(
            f"{''.join(lines[-60:])}\nfabrictime: {command[-2:]} ended with {process.returncode}"
        )


def main(selection: str) -> None:
    """Install a selection: `run` (the packages of agent, server and compiler), or `all` of the lock file."""
    entries = entries_of(LOCK.read_text(encoding="utf-8"))
    progress = Progress(sys.stderr)
    if selection == "all":
        install(set(entries), entries, progress)
    else:
        compiler = needed_by(names_of(["build"]), entries)
        install(compiler, entries, progress)
        with ThreadPoolExecutor(1) as pool:
            compiling = pool.submit(compile_native, progress)
            install(needed_by(names_of(["", "server"]), entries) - compiler, entries, progress)
            compiling.result()
    progress.end()


if __name__ == "__main__":
    main(sys.argv[1])
