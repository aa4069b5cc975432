"""Counts code of others that our processes run: files in the working directory and in `PYTHONPATH`.

`up` and all its services run in a folder that holds a file for each module of the standard library. The same
folder is in `PYTHONPATH` and is the user's site directory. Each such file records that it was run. An audit,
which starts other programs, runs there too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from fabrictime.bench import Progress, Value
from fabrictime.bench._fabric import CannotRun, wait_running, with_any_ports
from fabrictime.bench._waiting import end_child
from fabrictime.bench.field._remade import is_well
from schemas.run_module import module_command

START_S: Final = 180.0
AUDIT_S: Final = 120.0


def foreign_folder(folder: Path) -> tuple[Path, Path]:
    """Make a folder with a file for each standard module; return the folder and the file of traces."""
    trace, foreign = folder / "trace", folder / "foreign"
    foreign.mkdir()
    code = f"with open({str(trace)!r}, 'a') as trace:\n    trace.write(__name__ + '\\n')\n"
    for name in sys.stdlib_module_names:
        (foreign / f"{name}.py").write_text(code, encoding="utf-8")
    return foreign, trace


def foreign_environment(foreign: Path) -> Mapping[str, str]:
    """Return an environment in which Python searches the folder for modules."""
    return {**os.environ, "PYTHONPATH": str(foreign), "PYTHONUSERBASE": str(foreign)}


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Run `up` and an audit among foreign files; return the foreign files that ran, and the processes."""
    with tempfile.TemporaryDirectory(prefix="fabrictime-foreign-") as name:
        folder = Path(name)
        foreign, trace = foreign_folder(folder)
        config, data, output = folder / "fabrictime.toml", folder / "data", folder / "up.log"
        config.write_text(with_any_ports(""), encoding="utf-8")
        environment = foreign_environment(foreign)
        options = ["--fleet", "loopback" if quick else "fabric", "--config", str(config), "--dir", str(data)]
        with output.open("wb") as out:
            up = subprocess.Popen(
                module_command("fabrictime", "up", *options),
                cwd=foreign,
                env=environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            progress("foreign code: starting all services")
            wait_running(up, data, output, START_S, is_well)
            processes = len(psutil.Process(up.pid).children(recursive=True))
            audit = module_command(
                "fabrictime", "audit", "--json", "--config", str(config), "--dir", str(data)
            )
            subprocess.run(
                audit, cwd=foreign, env=environment, capture_output=True, timeout=AUDIT_S, check=False
            )
        finally:
            end_child(up, signal.SIGINT, 30)
        lines = trace.read_text(encoding="utf-8").splitlines() if trace.exists() else []
        for line in sorted(set(lines)):
            progress(f"foreign code: {line}.py was run")
        if processes < 5:
            raise CannotRun(f"{processes} processes ran, expected all services")
        return {"foreign_code_run": float(len(lines)), "foreign_code_processes": float(processes)}
