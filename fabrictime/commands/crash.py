"""Reports an unexpected exception of a command: one line for the user, the traceback in a file.

The line has the exception's class, its text and its source line, so that a report is of use without the file.
"""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path
from typing import Final

from fabrictime.runtime.user import state_directory

CRASH_EXIT: Final = 70
"""EX_SOFTWARE of sysexits.h: an internal error."""
MAX_TEXT: Final = 200
ROOT: Final = str(Path(__file__).resolve().parents[2]) + os.sep


def place_of(error: BaseException) -> str:
    """Return `package/module.py:line` of the innermost frame in this project's code, else in any code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if one.filename.startswith(ROOT) and "-packages" not in one.filename]
    for frame in reversed(own or frames):
        return f"{frame.filename.removeprefix(ROOT)}:{frame.lineno}"
    return "an unknown place"


def crash_line(error: BaseException, traceback_file: Path | None) -> str:
    """Return the line that reports an unexpected exception to the user."""
    text = " ".join(str(error).split())[:MAX_TEXT]
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    detail = "show the traceback with --debug" if traceback_file is None else f"traceback in {traceback_file}"
    return f"internal error, {reason} at {place_of(error)}; please report it ({detail})"


def write_traceback(error: BaseException, arguments: list[str]) -> Path | None:
    """Write the traceback to a file that only its owner can read; return the path, None if that fails."""
    try:
        folder = state_directory()[0] / "crashes"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"fabrictime {' '.join(arguments)}\n")
            file.writelines(traceback.format_exception(error))
    except (OSError, ValueError):
        return None
    return path
