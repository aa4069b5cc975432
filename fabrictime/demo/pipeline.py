"""Finds or starts the pipeline on which the tour runs: the running `up`, or one of its own.

The tour breaks links and changes the mode of all hosts, so `refusal` accepts only the testbed with the
embedded log, which no other machine can reach.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fabrictime.bench._fabric import running_up
from fabrictime.runtime import status
from fabrictime.runtime.config import Config
from fabrictime.testbed.control import ControlClient, socket_path
from schemas import codec
from schemas.kafka.settings import KafkaSettings

RATE_BPS: Final = 50_000_000
"""Rate of the links of a fabric that the tour starts, unless the settings give one. Two processors can carry
the tour and the probes at this rate."""
LIMIT: Final = "10m"
"""Time after which an `up` that the tour started ends, even if the tour was killed."""
START_S: Final = 120.0
"""Time, s, that the tour waits for an `up` that is starting: a slow machine takes 40."""
_EXPECTED: Final = "expected the private testbed, as in `fabrictime up --fleet fabric`"


class Refused(ValueError):
    """The tour must not run here; `str()` gives the reason in one line."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A running pipeline on the testbed."""

    control: ControlClient
    cluster: KafkaSettings
    registry: codec.Registry | None
    web: str | None


def refusal(fleet: str, *, own_log: bool) -> str | None:
    """Return the reason, in one line, why the tour must not run on a fleet and its log; None if it may."""
    if fleet != "fabric":
        return f"fleet {fleet}: the tour breaks links, {_EXPECTED}"
    if not own_log:
        return f"log: it may serve other hosts, and the tour changes the mode of all, {_EXPECTED}"
    return None


def settings_for(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings of an `up` for the tour: those of `config`, with link rates for two CPUs."""
    tables = {name: dict(table) for name, table in config.tables.items() if table}
    fabric = tables.setdefault("fabric", {})
    for key in ("host_rate_bps", "fabric_rate_bps"):
        fabric.setdefault(key, RATE_BPS)
    return tables


@contextlib.contextmanager
def open_pipeline(config: Config, announce: Callable[[str], None]) -> Iterator[Pipeline]:
    """Yield the running pipeline of the data directory, or start one and end it afterwards.

    Raises Refused, CannotRun, and status.NotReady for an `up` that is still starting after START_S.
    """
    directory = config.up.data_directory.absolute()
    state = _running_state(directory, announce)
    if state is not None:
        yield _pipeline(config, directory, state, announce)
        return
    reason = refusal(config.up.fleet, own_log=config.up.log_url is None)
    if reason is not None:
        raise Refused(reason)
    announce("No pipeline is running: the tour starts one, about 20 s, and ends it at the end.")
    with tempfile.TemporaryDirectory(prefix="fabrictime-demo-") as name:
        file = Path(name, "settings.json")
        file.write_text(json.dumps(settings_for(config), default=str), encoding="utf-8")
        options = ["--fleet", "fabric", "--for", LIMIT, "--config", str(file)]
        with running_up(options, directory, Path(name, "up.log")):
            yield _pipeline(config, directory, status.read(directory), announce)


def _running_state(directory: Path, announce: Callable[[str], None]) -> Mapping[str, Any] | None:
    """Return the state of the `up` on this directory, None if none runs. Wait for an `up` that is starting.

    Raises status.NotReady after START_S.
    """
    end_s, announced = time.monotonic() + START_S, False
    while True:
        try:
            return status.read(directory)
        except status.NotReady:
            if time.monotonic() > end_s:
                raise
        except ValueError:
            return None
        if not announced:
            announce("`fabrictime up` is starting: the tour waits for it.")
            announced = True
        time.sleep(0.2)


def _pipeline(
    config: Config, directory: Path, state: Mapping[str, Any], announce: Callable[[str], None]
) -> Pipeline:
    """Return the pipeline of a running `up`, and announce its broken parts. Raises Refused."""
    own_log = any(row["name"] == "log" for row in state["children"])
    reason = refusal(state["fleet"], own_log=own_log)
    if reason is not None:
        raise Refused(reason)
    for row in state["children"]:
        if row["fault"]:
            announce(f"A part of the pipeline does not work, {row['name']}: {row['fault']}.")
    addresses = state["addresses"]
    cluster = config.kafka.model_copy(update={"bootstrap": addresses["log"]})
    return Pipeline(
        ControlClient(socket_path(directory)), cluster, config.kafka.registry(), addresses.get("web")
    )
