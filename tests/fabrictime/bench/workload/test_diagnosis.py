"""The score of simulated incidents."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.bench.workload._answers import Answer
from fabrictime.bench.workload._drawn import Incident
from fabrictime.bench.workload.diagnosis import (
    Asked,
    Outcome,
    figures,
    is_right,
    is_stalled,
    run_incident,
)
from schemas.records import Verdict


def diagnosis(verdict: Verdict, **more: Any) -> Any:
    return {
        "verdict": verdict,
        "subject": "",
        "subjects": [],
        "links": [],
        "nics": [],
        "ranks": [],
        "jobs": [],
        **more,
    }


STRAGGLER = Incident("straggler", 1, frozenset({Verdict.STRAGGLER}), [], ranks=frozenset({3}))
LINK = Incident("grey", 1, frozenset({Verdict.GREY_LINK}), [], frozenset({"a>b"}), is_network=True)
CONTENTION = Incident(
    "contention",
    1,
    frozenset({Verdict.CONTENTION}),
    [],
    frozenset({"a>b"}),
    jobs=frozenset({"serve"}),
    is_network=True,
)


@pytest.mark.parametrize(
    ("incident", "found", "slowdown", "right"),
    [
        (STRAGGLER, diagnosis(Verdict.STRAGGLER, ranks=[3]), 0.3, True),
        (STRAGGLER, diagnosis(Verdict.STRAGGLER, ranks=[4]), 0.3, False),
        (STRAGGLER, diagnosis(Verdict.STRAGGLER, ranks=list(range(16))), 0.3, False),
        (STRAGGLER, diagnosis(Verdict.HEALTHY), 0.0, False),
        (LINK, diagnosis(Verdict.GREY_LINK, links=["a>b"]), 0.3, True),
        (LINK, diagnosis(Verdict.GREY_LINK, links=["a>c"]), 0.3, False),
        (LINK, diagnosis(Verdict.HEALTHY), 0.01, True),
        (LINK, diagnosis(Verdict.HEALTHY), 0.3, False),
        (CONTENTION, diagnosis(Verdict.CONTENTION, subject="a>b", jobs=["serve"]), 0.3, True),
        (CONTENTION, diagnosis(Verdict.CONTENTION, subject="a>b"), 0.3, False),
    ],
)
def test_a_right_verdict_names_cause_and_place(incident, found, slowdown, right):
    assert is_right(incident, found, slowdown) == right


def outcome(kind: str, **more: Any) -> Outcome:
    given: dict[str, Any] = {
        "seed": 1,
        "is_right": True,
        "blamed_network": False,
        "is_network": False,
        "is_decoy": False,
        "verdict": "STRAGGLER",
        "text": "",
        "lines": [],
        "slowdown": 0.5,
        "anomaly_s": 1.0,
        "root_cause_s": 2.0,
    }
    made = Outcome(kind, **{**given, **more})
    made.answers = [Answer(0.9, made.is_right, made.blamed_network)] * 4
    return made


def test_a_stall_that_names_the_rank_is_right_about_a_hang() -> None:
    hang = Incident("hang", 1, frozenset({Verdict.HANG}), [], ranks=frozenset({3}))
    stalled = diagnosis(Verdict.STALLED, ranks=[3])
    assert is_stalled(hang, stalled)
    assert not is_stalled(hang, diagnosis(Verdict.UNKNOWN, ranks=[3]))
    assert not is_stalled(hang, diagnosis(Verdict.STALLED, ranks=[4]))
    assert not is_stalled(STRAGGLER, stalled)


def test_figures_name_the_wrong_ones_with_their_seeds():
    found = figures(
        [
            outcome("straggler"),
            outcome("straggler", seed=7, is_right=False, blamed_network=True, root_cause_s=None),
            outcome("healthy", is_decoy=True, slowdown=0.0, anomaly_s=None, root_cause_s=1.0),
            outcome("grey", is_network=True, blamed_network=True, ranks=256, cpu_s=2.2, evaluation_ms=9.0),
        ],
        1,
    )
    assert found["diagnosis_right"].value == 0.75
    assert found["evaluate_256_ranks_ms"].value == 9.0
    assert "0.10 of one core" in found["evaluate_256_ranks_ms"].note, "2.2 of 22 s"
    assert "straggler 7 as STRAGGLER" in found["diagnosis_right"].note
    assert found["network_blamed_wrongly"].value == pytest.approx(1 / 3)
    assert found["anomaly_s_p90"].value == 1.0
    assert found["diagnosis_right_straggler"].value == 0.5


def test_a_long_incident_holds_its_verdict_if_no_wrong_one_came_later():
    found = figures(
        [
            outcome("grey"),
            outcome("grey", length_s=24.0, root_cause_s=3.0),
            outcome("paced", seed=5, length_s=24.0, root_cause_s=20.0),
        ],
        1,
    )
    assert found["long_diagnosis_right"].value == 0.5
    assert "paced 5" in found["long_diagnosis_right"].note
    assert "1 incidents" in found["diagnosis_right"].note


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'gray': expected one of down, blackhole"):
        run_incident(Asked("gray", 1))


@pytest.mark.slow("runs a bench")
def test_a_straggler_is_named_and_the_network_is_not_blamed():
    found = run_incident(Asked("straggler", 1))
    assert found.is_right, found.log_lines
    assert not found.blamed_network
    assert found.slowdown > 0.05
