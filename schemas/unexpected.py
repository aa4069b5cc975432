"""Turns an unexpected error that a record caused into the reason for its refusal.

Checks cannot foresee everything. If processing a record raises an error of the types `DATA_ERRORS`, the
record is refused and the process goes on. Other errors, of the log, the system or a cancelled task, are
raised.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from schemas.checks import BadRecord

DATA_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_ROOT: Final = Path(__file__).resolve().parents[1]


def refusal(error: Exception) -> BadRecord:
    """Return a `BadRecord` with the reason in `error`; for an unexpected error, its class and source line."""
    if isinstance(error, BadRecord):
        return error
    reason = getattr(error, "reason", None)  # BadBatch of the native decoder; UnicodeError has another one
    if isinstance(reason, str) and not isinstance(error, UnicodeError):
        return BadRecord(reason, str(error))
    frames = traceback.extract_tb(error.__traceback__)
    place = "unknown place"
    if frames:
        path = Path(frames[-1].filename)
        ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_ROOT)]
        if ours:
            path = Path(ours[-1].filename).relative_to(_ROOT)
        place = f"{path}:{(ours or frames)[-1].lineno}"
    refused = BadRecord("OTHER", f"{type(error).__name__} at {place}: {error}"[:300])
    refused.__cause__ = error
    return refused
