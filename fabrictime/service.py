"""Runs one service in this process, for the supervisor and for containers.

In: a service's name and the settings file. Out: the service's own exit code; 2 for settings it cannot use.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fabrictime.config import Config, ConfigError, load
from fabrictime.ready import die_with_parent
from fabrictime.supervisor import CONFIG_EXIT


def _log(config: Config, nic: str | None) -> int | None:
    from fabrictime.log.server import main

    return main(config.log)


def _history(config: Config, nic: str | None) -> int | None:
    from fabrictime.history.server import main

    return main(config.history)


def _streams(config: Config, nic: str | None) -> int | None:
    from streams.app import main

    return main(config.streams)


def _page(config: Config, nic: str | None) -> int | None:
    from fabrictime.page.server import main

    return main(config.page)


def _prober(config: Config, nic: str | None) -> int | None:
    from fabrictime.fleet import nic_of
    from producers.prober import main

    return main(config.probes, nic_of(config, nic))


SERVICES: Final[dict[str, Callable[[Config, str | None], int | None]]] = {
    "log": _log,
    "history": _history,
    "streams": _streams,
    "page": _page,
    "prober": _prober,
}


def run(name: str, path: Path | None, nic: str | None = None) -> int:
    """Run service `name` until it ends and return its exit code."""
    die_with_parent()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if name not in SERVICES:
        return _refuse(f"service {name!r}: expected one of {', '.join(SERVICES)}")
    try:
        return SERVICES[name](load(path), nic) or 0
    except ConfigError as error:
        return _refuse(str(error))


def _refuse(line: str) -> int:
    print(f"fabrictime: {line}", file=sys.stderr, flush=True)
    return CONFIG_EXIT


def main() -> int:
    """Take `NAME SETTINGS [NIC]` from the command line: how the supervisor starts a child."""
    name, path, *nic = sys.argv[1:]
    return run(name, Path(path), nic[0] if nic else None)


if __name__ == "__main__":
    sys.exit(main())
