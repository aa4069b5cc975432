"""Implements `fabrictime audit gate` and `act`: audit results admit jobs and drain nodes."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Sequence
from typing import Final

from actuators.nodes.actuator import Done
from actuators.nodes.fitness import Fitness, HostFitness
from actuators.nodes.service import act_once
from actuators.settings import ActuatorSettings
from fabrictime.audit.node_log import read_audits
from fabrictime.runtime.user import user_name
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.settings import KafkaSettings
from schemas.records import ActionOutcome

FIT_EXIT: Final = 0
UNFIT_EXIT: Final = 1
UNKNOWN_EXIT: Final = 2
FAILED_EXIT: Final = 1


def host_names(text: str) -> list[str]:
    """Return the hosts in a list separated by commas or spaces. Raises ValueError if there are none."""
    hosts = list(dict.fromkeys(name for name in re.split(r"[,\s]+", text) if name))
    if not hosts:
        raise InputError(f"--hosts {text!r}: expected names such as h1,h2")
    return hosts


def admit(
    cluster: KafkaSettings,
    hosts: Sequence[str],
    *,
    run: str | None = None,
    max_age_s: float = 7200.0,
    strict: bool = False,
    as_json: bool = False,
    registry: codec.Registry | None = None,
) -> int:
    """Print whether a job may start on these hosts, and return the exit code: 0 yes, 1 no, 2 unknown.

    Raises ValueError if the log cannot be read.
    """
    audits = read_audits(cluster, run, max_age_s, registry)
    since_ns = 0 if run is not None else time.time_ns() - round(max_age_s * 1e9)
    verdicts = [audits.fitness(host, since_ns, strict=strict) for host in hosts]
    states = {verdict.fitness for verdict in verdicts}
    code = UNFIT_EXIT if Fitness.UNFIT in states else UNKNOWN_EXIT if Fitness.UNKNOWN in states else FIT_EXIT
    if as_json:
        rows = [
            {"host": verdict.host, "fitness": verdict.fitness, "reasons": verdict.reasons}
            for verdict in verdicts
        ]
        print(json.dumps({"exit_code": code, "hosts": rows}))
    else:
        _print_admission(verdicts)
    return code


def _print_admission(verdicts: Sequence[HostFitness]) -> None:
    for verdict in verdicts:
        if verdict.fitness is not Fitness.FIT:
            print(f"{verdict.host}: {verdict.fitness.lower()}: {'; '.join(verdict.reasons)}")
    fit = sum(one.fitness is Fitness.FIT for one in verdicts)
    print(f"{fit} of {len(verdicts)} hosts are fit")


def act(settings: ActuatorSettings, *, observe: bool = False, as_json: bool = False) -> int:
    """Drain and resume nodes once by the newest audit results, and print each action with its reason.

    Return the exit code: 1 if an action failed, else 0. Raises ValueError if scheduler or log do not answer.
    """
    done = act_once(settings, f"{user_name()}@{socket.gethostname()}"[:256], observe=observe)
    for entry in done:
        print(_json(entry) if as_json else _line(entry))
    if not done and not as_json:
        print("no action: no node is unfit, and none is drained by an audit")
    return FAILED_EXIT if any(one.outcome is ActionOutcome.FAILED for one in done) else 0


def _line(done: Done) -> str:
    step = done.step
    return f"{done.outcome or 'none'} {step.action.lower()} {step.node}: {done.text}"


def _json(done: Done) -> str:
    step = done.step
    return json.dumps(
        {
            "node": step.node,
            "host": step.host,
            "action": step.action,
            "outcome": done.outcome,
            "run": step.run,
            "text": done.text,
        }
    )
