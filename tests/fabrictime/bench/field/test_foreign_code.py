"""Foreign files are found by Python's search, and note that they were run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fabrictime.bench.field.foreign_code import foreign_environment, foreign_folder


def test_a_python_that_is_not_isolated_runs_foreign_code_and_is_counted(tmp_path: Path) -> None:
    foreign, trace = foreign_folder(tmp_path)
    assert len(list(foreign.glob("*.py"))) == len(sys.stdlib_module_names)
    for path in foreign.glob("*.py"):
        if path.stem not in ("graphlib", "colorsys"):  # others stop a Python that is not isolated at once
            path.unlink()
    code = "import graphlib, colorsys"
    for options, expected in ((["-I"], 0), ([], 2)):
        subprocess.run(
            [sys.executable, *options, "-S", "-c", code],
            cwd=foreign,
            env=foreign_environment(foreign),
            check=False,
            capture_output=True,
        )
        lines = trace.read_text().splitlines() if trace.exists() else []
        assert len(set(lines) & {"graphlib", "colorsys"}) == expected
