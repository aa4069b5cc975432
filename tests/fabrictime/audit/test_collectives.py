"""Collectives over hosts, by stand-ins of launcher and program: nccl-tests cannot run here.

The stand-in launcher takes the arguments of mpirun and srun, and starts one program that prints nccl-tests'
form for the hosts. A planted member makes every group slow that it is in. Commands and parser are ours.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fabrictime.audit.collectives import SETTINGS, Launch, NoFigure, default_launcher, measure_all
from fabrictime.testbed.audit.recorded_active import reduced
from schemas.input_error import InputError
from streams.audit.traffic.bisection import run_limit

LAUNCHER = """#!/bin/sh
for argument; do
    case "$argument" in
        --nodelist=*) HOSTS=${{argument#*=}} ;;
        */all_reduce_perf) program=$argument ;;
    esac
    [ "$before" = --host ] && HOSTS=$argument
    before=$argument
done
export HOSTS
echo "$*" >> {folder}/log
exec "$program"
"""
PROGRAM = """#!/bin/sh
case ",$HOSTS," in
    {slow}) cat {folder}/slow ;;
    *) cat {folder}/fast ;;
esac
"""


def stand_ins(folder: Path, slow: str, slow_text: str = "", name: str = "mpirun") -> Launch:
    """Write launcher and program. `slow`: pattern of the hosts of slow groups."""
    (folder / "fast").write_text(reduced(462.4))
    (folder / "slow").write_text(slow_text or reduced(205.3))
    for file, text in ((name, LAUNCHER), ("all_reduce_perf", PROGRAM)):
        (folder / file).write_text(text.format(folder=folder, slow=slow))
        (folder / file).chmod(0o755)
    return Launch(str(folder / name), str(folder / "all_reduce_perf"), 8, limit_s=20.0)


def names(count: int) -> list[str]:
    return [f"h{number}" for number in range(count)]


@pytest.mark.parametrize("name", ["mpirun", "srun"])
@pytest.mark.parametrize("minimum", [440.0, None])
def test_a_slow_member_is_found(tmp_path: Path, name: str, minimum: float | None) -> None:
    figures = measure_all(stand_ins(tmp_path, "*,h5,*", name=name), names(8), minimum)
    assert figures.search is not None
    assert (figures.search.slow, figures.search.suspects) == (("h5",), ())
    assert set(figures.by_setting.values()) == {205.3}
    runs = len((tmp_path / "log").read_text().splitlines())
    assert runs == len(SETTINGS) + figures.search.runs
    assert figures.search.runs <= run_limit(8, has_minimum=minimum is not None)


def test_full_bandwidth_needs_no_search(tmp_path: Path) -> None:
    seen: list[str] = []
    figures = measure_all(stand_ins(tmp_path, "none"), names(8), 440.0, seen.append)
    assert (figures.search, figures.errors) == (None, {})
    assert len(figures.by_setting) == len(seen) == 8


def test_two_slow_members_and_one_that_computes_wrong_values(tmp_path: Path) -> None:
    figures = measure_all(stand_ins(tmp_path, "*,h2,*|*,h9,*"), names(16), 440.0)
    assert figures.search is not None
    assert figures.search.slow == ("h2", "h9")
    figures = measure_all(stand_ins(tmp_path, "*,h3,*", reduced(462.4, wrong=7)), names(8), 440.0)
    assert figures.search is not None
    assert figures.search.slow == ("h3",)
    assert set(figures.errors.values()) == {"7 wrong values"}


def test_commands_of_the_launchers() -> None:
    environment = {"NCCL_ALGO": "Ring", "NCCL_IB_QPS_PER_CONNECTION": "4"}
    mpirun = Launch("/usr/bin/mpirun", "all_reduce_perf", 8, ("--allow-run-as-root",))
    assert " ".join(mpirun.command(["a", "b"], environment)) == (
        "/usr/bin/mpirun -np 2 --host a,b --map-by node -x NCCL_ALGO=Ring -x NCCL_IB_QPS_PER_CONNECTION=4 "
        "--allow-run-as-root all_reduce_perf -b 1G -e 1G -n 20 -w 5 -g 8"
    )
    srun = Launch("srun", "all_reduce_perf", 4, ("--mpi=pmix",))
    assert " ".join(srun.command(["a", "b"], environment)) == (
        "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist=a,b "
        "--export=ALL,NCCL_ALGO=Ring,NCCL_IB_QPS_PER_CONNECTION=4 --mpi=pmix "
        "all_reduce_perf -b 1G -e 1G -n 20 -w 5 -g 4"
    )
    assert list(SETTINGS) == [
        f"{shape}, {pairs} queue pairs" for shape in ("plain", "hierarchical") for pairs in (1, 2, 4, 8)
    ]


def test_runs_that_fail_or_hang_give_the_reason(tmp_path: Path) -> None:
    launch = stand_ins(tmp_path, "none")
    program = tmp_path / "all_reduce_perf"
    program.write_text("#!/bin/sh\necho 'ssh: connect to host h1: refused' >&2\nexit 3\n")
    with pytest.raises(NoFigure, match="exit code 3, ssh: connect to host h1: refused"):
        launch.bandwidth(["h1", "h2"], {})
    program.write_text("#!/bin/sh\necho started\n")
    with pytest.raises(NoFigure, match="no average bus bandwidth"):
        launch.bandwidth(["h1", "h2"], {})
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    began_s = time.monotonic()
    with pytest.raises(NoFigure, match="no end within"):
        launch._replace(limit_s=0.5).bandwidth(["h1", "h2"], {})
    assert time.monotonic() - began_s < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    with pytest.raises(NoFigure, match="No such file"):
        launch._replace(launcher=str(tmp_path / "none")).bandwidth(["h1", "h2"], {})


def test_the_launcher_is_that_of_the_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("srun", "mpirun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert default_launcher() == str(tmp_path / "mpirun")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert default_launcher() == str(tmp_path / "srun")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(InputError, match="srun and mpirun: not installed"):
        default_launcher()
