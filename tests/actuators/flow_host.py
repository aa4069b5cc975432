"""An applier with flows in a dict and a clock that a test sets."""

from __future__ import annotations

from actuators.effectors.base import Answer
from actuators.flows.applier import Applier
from schemas import codec
from schemas.messages import decode_message
from schemas.topics import ACTIONS, CONFIG, DECISIONS

KEY = "qp:eth1:1:1"
FLOW = f"h1/b/{KEY}"
OTHER = "h1/b/qp:eth1:2:1"
S = 1_000_000_000
EVERY = ["REROUTE", "RESTORE", "PACE", "UNPACE", "SLICE"]


class Flows:
    """Flows of a host in a dict; `done` holds the commands carried out. While `slow`, commands wait for
    `answer`.
    """

    def __init__(self, **paths):
        self.paths = {KEY: 50_000, **paths}
        self.rates = {}
        self.done = []
        self.verbs = frozenset({"MOVE", "PACE"})
        self.slow = False
        self.open = []

    def path_of(self, key):
        return self.paths.get(key)

    def can(self, key):
        return self.verbs

    def execute(self, key, verb, value, answer):
        if self.slow:
            self.open.append((key, verb, value, answer))
        else:
            self.do(key, verb, value, answer)

    def do(self, key, verb, value, answer):
        if value == 666:
            answer(Answer(error="no"))
            return
        self.done.append((key, verb, value))
        if verb == "MOVE":
            self.paths[key] = value
        else:
            self.rates[key] = value
        answer(Answer(value, "SOCKET" if verb == "MOVE" else "PACING"))

    def answer(self):
        """Carry out the oldest waiting command."""
        self.do(*self.open.pop(0))

    @property
    def moves(self):
        return [(key, value) for key, verb, value in self.done if verb == "MOVE"]


class Host:
    """An `Applier` with its effector, a clock that a test sets, and its reports."""

    def __init__(self, flows=None, records=None, **more):
        self.flows = flows or Flows()
        self.now_ns = self.clock_ns = 0
        self.reports = []
        self.it = Applier(
            "h1",
            self.flows,
            self.report,
            lambda: self.now_ns,
            lambda: self.clock_ns,
            **more,
        )
        self.it.take_config(config() if records is None else records)

    def report(self, record, token):
        self.reports.append(codec.decode(codec.encode(ACTIONS.record, record), ACTIONS.record))

    def take(self, record, token=None):
        """Pass a decision; return the outcome of the last report."""
        value = codec.encode(DECISIONS.record, record)
        self.it.take(decode_message(DECISIONS, record["host"].encode(), value), token)
        return self.reports[-1]["outcome"] if self.reports else None

    @property
    def outcomes(self):
        return [(each["decision_id"], each["outcome"]) for each in self.reports]


def decision(seq=0, epoch=1, to_path=50_001, **fields):
    return {
        "decision_id": f"s0/{epoch}/{seq}",
        "shard": "s0",
        "epoch": epoch,
        "seq": seq,
        "at_ns": 0,
        "host": "h1",
        "action": "REROUTE",
        "flow_id": FLOW,
        "from_path": 50_000,
        "to_path": to_path,
        "expires_at_ns": S,
        "reason": {"kind": "DOWN", "subject": "x", "seq": 1, "window_id": None},
        "config_version": 1,
        "signature": b"",
        "text": "",
        **fields,
    }


def pace(seq, rate_bps, expires_at_ns=S, action="PACE", **fields):
    return decision(
        seq, to_path=None, action=action, rate_bps=rate_bps, expires_at_ns=expires_at_ns, **fields
    )


def config(host="*", mode="ACT", **fields):
    record = {"host": host, "version": 1, "at_ns": 0, "by": "t", "mode": mode, **fields}
    return {host: codec.decode(codec.encode(CONFIG.record, record), CONFIG.record)}


def all_allowed(**fields):
    return config(allowed_actions=EVERY, **fields)
