"""Health of the workers: exit code 0 when Kafka says that their consumer group is settled.

In: bootstrap address and group name. Out: one line and an exit code.
"""

import sys

from confluent_kafka.admin import AdminClient

TIMEOUT_S = 8.0


def main(bootstrap: str, group: str) -> int:
    """Ask for the group's state; 0 only for a stable group with members."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    found = client.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result(TIMEOUT_S)
    print(f"group {group}: {found.state.name}, {len(found.members)} members")
    return 0 if found.state.name == "STABLE" and found.members else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
