"""Starts our own Python modules without code from the working directory, PYTHONPATH or the user's site.

`python -m` searches the working directory first, so a `queue.py` that lies there would run with our rights.
All our processes start through this file in Python's isolated mode (`-I`), which searches the interpreter's
own folders only. The file then adds our packages' folder. As a program it imports the standard library alone.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]
"""The checkout, or the site-packages folder of an installed wheel."""


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs one of our modules with this interpreter, with unbuffered output."""
    return (*script_command(__file__), module, *arguments)


def script_command(path: str, *arguments: str, python: str | None = None) -> tuple[str, ...]:
    """Return the command that runs one of our script files with `python`, by default this interpreter."""
    return (python or sys.executable, "-I", "-u", str(Path(path).resolve()), *arguments)


def main() -> None:
    """Run the module that the first argument names, with the remaining arguments."""
    if len(sys.argv) < 2:
        sys.exit("run_module: no module; expected the name of a module and its arguments")
    clients = _ROOT / "clients" / "python"
    folders = [str(folder) for folder in (_ROOT, clients) if folder.is_dir()]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
