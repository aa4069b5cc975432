"""Prints fabric time: `python -m fabrictime_client [PATH] [--json]`. Exits with 1 if it is not available.

The output is seconds since the Unix epoch with nine decimals, the bound in ns, and the state.
"""

from __future__ import annotations

import json
import sys

from fabrictime_client import Clock, ClockError


def main() -> int:
    """Print one reading; return the exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--json"]
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print("usage: python -m fabrictime_client [PATH] [--json]", file=sys.stderr)
        return 2
    try:
        with Clock(arguments[0] if arguments else None) as clock:
            time_ns, bound_ns = clock.now()
            status = clock.status()
    except ClockError as error:
        print("fabrictime: %s" % error, file=sys.stderr)
        return 1
    if "--json" in sys.argv[1:]:
        print(json.dumps({"time_ns": time_ns, "bound_ns": bound_ns, **status._asdict()}))
    else:
        print("%d.%09d %d %s" % (*divmod(time_ns, 1_000_000_000), bound_ns, status.state))
    return 0


if __name__ == "__main__":
    sys.exit(main())
