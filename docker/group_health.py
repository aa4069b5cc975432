"""Check the health of the workers: exit code 0 if their consumer group is stable and has members.

The arguments are the settings file and the group.
"""

import sys
from pathlib import Path

from fabrictime.runtime.config import load
from schemas.kafka.admin import group_state

TIMEOUT_S = 8.0


def main(config: str, group: str) -> int:
    """Print the group's state; return 0 only for a stable group with members."""
    state, members = group_state(load(Path(config)).kafka, group, TIMEOUT_S)
    print(f"group {group}: {state}, {members} members")
    return 0 if state == "STABLE" and members else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
