"""`fabrictime audit gate` and `fabrictime audit act`: use audit results to admit jobs and to drain nodes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from actuators.effectors.kubernetes import Kubernetes
from actuators.effectors.node_base import NodeEffector, NodeError
from actuators.effectors.slurm import Slurm
from actuators.journal import Journal
from actuators.nodes.actuator import Done, NodeActuator
from actuators.nodes.fitness import Fitness, HostFitness
from actuators.nodes.policy import NodeRules, plan
from actuators.settings import ActuatorSettings, NodeSettings
from fabrictime.audit.node_log import NodeLog, read_audits
from schemas import codec
from schemas.kafka.publisher import Publisher
from schemas.kafka.settings import KafkaSettings
from schemas.records import ActionOutcome, ActionReport
from schemas.topics import ACTIONS

FIT_EXIT: Final = 0
UNFIT_EXIT: Final = 1
UNKNOWN_EXIT: Final = 2
FAILED_EXIT: Final = 1
FLUSH_S: Final = 10.0
EFFECTORS: Final[Mapping[str, Callable[[NodeSettings], NodeEffector]]] = {
    "slurm": lambda settings: Slurm(settings.limit_s),
    "kubernetes": lambda settings: Kubernetes(settings.kubeconfig, settings.context, settings.limit_s),
}


def host_names(text: str) -> list[str]:
    """Return the hosts in a list separated by commas or spaces. Raises ValueError if there are none."""
    hosts = list(dict.fromkeys(name for name in re.split(r"[,\s]+", text) if name))
    if not hosts:
        raise ValueError(f"--hosts {text!r}: expected names such as h1,h2")
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
    """Print whether a job may start on these hosts, and return the exit code: 0 yes, 1 no, 2 not known.

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


def act(
    settings: ActuatorSettings,
    cluster: KafkaSettings,
    *,
    scheduler: str | None = None,
    observe: bool = False,
    as_json: bool = False,
    registry: codec.Registry | None = None,
) -> int:
    """Drain and resume nodes according to the newest audit results, and print each action with its reason.

    Returns the exit code: 1 if an action failed, else 0. Raises ValueError if scheduler or log do not answer.
    """
    nodes = settings.nodes
    name = scheduler or nodes.scheduler
    if name not in EFFECTORS:
        raise ValueError(f"scheduler {name!r}: expected {' or '.join(EFFECTORS)} (actuators.nodes.scheduler)")
    with _alone(settings.node_journal_path):
        journal = Journal(settings.node_journal_path)
        try:
            done = _act(nodes, EFFECTORS[name](nodes), journal, cluster, observe, registry)
        except NodeError as error:
            raise ValueError(str(error)) from None
        finally:
            journal.close()
    for entry in done:
        print(_json(entry) if as_json else _line(entry))
    if not done and not as_json:
        print("no action: no node is unfit, and none is drained by an audit")
    return FAILED_EXIT if any(one.outcome is ActionOutcome.FAILED for one in done) else 0


def _act(
    settings: NodeSettings,
    effector: NodeEffector,
    journal: Journal,
    cluster: KafkaSettings,
    observe: bool,
    registry: codec.Registry | None,
) -> list[Done]:
    log = NodeLog.read(cluster, settings.max_age_s, registry)
    publisher = Publisher(cluster, registry)

    def publish(report: ActionReport) -> None:
        publisher.publish(ACTIONS, report["host"], report)
        publisher.flush(FLUSH_S)
        log.reported.add((report["decision_id"], report["outcome"]))

    actuator = NodeActuator(effector, journal, log.limits_of, publish, log.is_reported)
    nodes = effector.nodes()
    recovered = actuator.recover(journal.states, nodes)
    since_ns = log.read_ns - settings.max_age_s * 1_000_000_000
    fitness = {host: log.audits.fitness(host, since_ns) for host in log.audits.hosts}
    rules = NodeRules(settings.max_out_share, settings.min_in, settings.failed_runs, settings.clean_runs)
    return recovered + actuator.carry_out(plan(nodes, fitness, rules, settings.hosts), observe=observe)


@contextmanager
def _alone(journal: Path) -> Iterator[None]:
    """Hold a lock beside the journal, so that only one process acts. Raises ValueError if another process
    holds it.
    """
    path = journal.with_name(f"{journal.name}.lock")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{path}: another process acts on nodes, expected one at a time") from None
        yield
    finally:
        os.close(fd)


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
