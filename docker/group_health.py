"""Check the health of the workers: exit code 0 if their consumer group is stable and has members.

The arguments are the settings file and the group.
"""

import sys
from pathlib import Path

from confluent_kafka.admin import AdminClient

from fabrictime.runtime.config import load

TIMEOUT_S = 8.0


def main(config: str, group: str) -> int:
    """Print the group's state; return 0 only for a stable group with members."""
    client = AdminClient(load(Path(config)).kafka.confluent_options())
    found = client.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result(TIMEOUT_S)
    print(f"group {group}: {found.state.name}, {len(found.members)} members")
    return 0 if found.state.name == "STABLE" and found.members else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
