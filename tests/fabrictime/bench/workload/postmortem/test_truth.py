"""Tests that the truth about folders is well formed, and that answers are scored by it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fabrictime.bench import Missing
from fabrictime.bench.workload import postmortem
from fabrictime.bench.workload.postmortem import Result, figures, measure
from fabrictime.bench.workload.postmortem.folders import write_folders
from fabrictime.bench.workload.postmortem.incident import SHARES, draw_incident
from fabrictime.bench.workload.postmortem.run import Run, simulate
from fabrictime.bench.workload.postmortem.truth import VERDICTS, Culprits, Folder, right, truth


def run_of(kind: str, seed: int = 3) -> Run:
    rng = Random(f"{seed}/{kind}")
    return simulate(rng, draw_incident(rng, kind))


@pytest.mark.parametrize("kind", SHARES)
def test_the_true_answer_is_right_in_each_folder(kind: str, tmp_path: Path) -> None:
    run = run_of(kind)
    names = {name for name in _names(run) if not name.startswith("nic")}
    for _, folder in write_folders(tmp_path, run, Random(kind)):
        accepted = truth(run, folder)
        assert accepted
        assert set(accepted) <= set(VERDICTS)
        for culprits in accepted.values():
            assert {name.partition(" ")[0] for name in culprits.needed | culprits.allowed} <= {
                "rank",
                "host",
                "nic",
            }
        if not folder.parts and run.incident.verdict in accepted:
            assert right({"verdict": run.incident.verdict, "culprits": sorted(names)}, accepted), folder


def _names(run: Run) -> set[str]:
    return {
        name for rank in run.incident.ranks for name in (f"rank {rank}", f"host {run.job.host(rank).name}")
    }


def test_a_hang_has_one_culprit_in_dumps_unless_ranks_are_missing() -> None:
    run = run_of("hang_absent")
    [culprit] = run.incident.ranks
    other = next(rank for rank in run.job.world.ranks if rank != culprit)
    full = truth(run, Folder("flight-recorder-json"))
    assert right({"verdict": "HANG", "culprits": [f"rank {culprit}", "group 0 (default_pg)"]}, full)
    assert not right({"verdict": "HANG", "culprits": [f"rank {other}"]}, full)
    assert not right({"verdict": "HANG", "culprits": []}, full)
    assert not right({"verdict": "UNKNOWN", "culprits": []}, full)
    blind = truth(run, Folder("flight-recorder-json", frozenset({culprit})))
    assert right({"verdict": "DEAD_RANK", "culprits": [f"rank {culprit}"]}, blind)


def test_unknown_is_right_only_where_nothing_shows() -> None:
    run = run_of("straggler_rank")
    unknown = {"verdict": "UNKNOWN", "culprits": []}
    assert right(unknown, truth(run, Folder("nccl-tests")))
    assert right(unknown, truth(run, Folder("flight-recorder-json", timing=False)))
    assert not right(unknown, truth(run, Folder("kineto")))
    several = Folder("several", parts=(Folder("nccl-tests"), Folder("kineto")))
    assert not right(unknown, truth(run, several))


def test_a_job_without_a_fault_has_no_cause() -> None:
    accepted = truth(run_of("none"), Folder("kineto"))
    assert set(accepted) == {"HEALTHY"}
    assert not right({"verdict": "HEALTHY", "culprits": ["rank 1"]}, accepted)


def test_a_host_with_a_domain_is_the_same_host() -> None:
    rule = {"DEAD_RANK": Culprits(frozenset({"host node7"}), frozenset({"nic node7/mlx5_0"}))}
    assert right({"verdict": "DEAD_RANK", "culprits": ["host node7.cluster.example"]}, rule)


def test_figures_count_false_causes_and_shares() -> None:
    def result(kind: str, verdict: str) -> Result:
        return Result(
            "1/0", kind, "kineto", False, {"HEALTHY": Culprits()}, {"verdict": verdict, "culprits": []}
        )

    values = figures([result("none", "HEALTHY"), result("none", "STRAGGLER"), result("slow_nic", "HEALTHY")])
    assert values["postmortem_right"].value == pytest.approx(2 / 3)  # type: ignore[union-attr]
    assert values["postmortem_false_causes"].value == 1  # type: ignore[union-attr]
    assert values["postmortem_right_none"].value == 0.5  # type: ignore[union-attr]


def test_an_absent_option_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postmortem, "_call", lambda _: (0, "Usage: explain [JOB]", ""))
    values = measure(lambda _: None)
    assert isinstance(values["postmortem_right"], Missing)
    assert "--folder" in values["postmortem_right"].reason


def test_a_folder_of_no_known_form_is_unknown_and_a_crash_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for code, verdict in ((2, "UNKNOWN"), (1, None)):
        monkeypatch.setattr(postmortem, "_call", lambda _, code=code: (code, "", "no line of a known form"))
        assert postmortem._answer(tmp_path)["verdict"] == verdict
