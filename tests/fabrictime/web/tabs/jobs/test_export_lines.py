"""Lines that load the profilers."""

from __future__ import annotations

from pathlib import Path

from fabrictime.web.tabs.jobs.export_lines import export_lines
from native import nccl


def test_the_lines_have_the_paths_of_this_machine(tmp_path: Path) -> None:
    first, *others = export_lines(tmp_path / "run" / "state.json")
    assert (
        first == f"export FABRICTIME_JOB=NAME FABRICTIME_COLLECTIVES={tmp_path / 'run' / 'collectives.sock'}"
    )
    assert f"export NCCL_PROFILER_PLUGIN={nccl.library()}" in others


def test_without_a_data_directory_the_socket_is_relative() -> None:
    assert export_lines(None)[0].endswith("FABRICTIME_COLLECTIVES=run/collectives.sock")
