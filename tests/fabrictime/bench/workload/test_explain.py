"""The records of the bench of explanations: valid, contended in the end, as large as published ones."""

from __future__ import annotations

from fabrictime.bench.workload import PARTS, TARGETS
from fabrictime.bench.workload.explain import FLOWS, RANKS, _records
from schemas import codec
from schemas.records import Diagnosis
from streams.diagnosis.inputs import MAX_FLOWS

S = 1_000_000_000
T = 1_900_000_000 * S


def test_the_records_cover_the_time_and_end_contended() -> None:
    found = list(_records(T, 60))
    for record in found:
        codec.decode(codec.encode(Diagnosis, record | {"job": "job0"}), Diagnosis)  # type: ignore[arg-type]
    assert [record["end_ns"] for record in found] == [T - (60 - 5 * n) * S for n in range(1, 13)]
    assert [str(record["verdict"]) for record in found] == ["HEALTHY"] * 9 + ["CONTENTION"] * 3
    assert (len(found[0]["time_splits"]), len(found[0]["flows"])) == (RANKS, FLOWS)
    assert FLOWS == MAX_FLOWS


def test_every_figure_of_the_part_has_a_target() -> None:
    assert set(PARTS["explain"]) <= TARGETS.keys()
