"""How many examples a property test draws: few in `make test`, all in `make test-all`."""

import os

QUICK_EXAMPLES = 25
IS_FULL = os.environ.get("FABRICTIME_TESTS") == "all"


def examples(full: int) -> int:
    """Return the number of examples of a test that draws `full` in `make test-all`."""
    return full if IS_FULL else min(full, QUICK_EXAMPLES)
