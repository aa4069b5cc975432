"""Outcomes of foreign runs, in seconds, for tests."""

from __future__ import annotations

from fabrictime.bench.foreign._draw import Case
from fabrictime.bench.foreign._results import Outcome
from fabrictime.bench.foreign._truth import Answer, Culprit

S = 1_000_000_000
H5 = Culprit(2, "h5")


def answer(at_s, verdict, subject="", *, confidence=0.9, network=False, ranks=(), jobs=(), others=()):
    return Answer(at_s * S, verdict, confidence, network, subject, ranks, jobs, others)


def outcome(cause, *answers, part="runs", culprit=H5, after_s=0.0, **values):
    hosts = ("h1", "h3", "h5", "h7")
    case = Case(f"{part}-1-{cause}", part, cause, "halo", "S", hosts, 2, 0, 15.0, 30.0, after_s)
    times = {"ready_ns": 0, "begin_ns": 20 * S, "end_ns": 50 * S, "finish_ns": 70 * S}
    return Outcome(case, culprit, **times | values, answers=list(answers))
