"""Dumps in the forms of PyTorch's tutorial and tests, reduced and with other names.

Each test names its source.
"""

from __future__ import annotations

from fabrictime.postmortem.report import as_json, explain_folder
from tests.fabrictime.postmortem.job_files import write_dump


def test_a_dump_of_the_tutorial(tmp_path):
    """pytorch/tutorials, flight_recorder_tutorial: version 2.5, started never discovered without timing."""
    entry = {
        "frames": [{"name": "<module>", "filename": "<string>", "line": 1}],
        "record_id": 0,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1724779239936775119,
        "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[3, 4]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1724779239975811724,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
    }
    status = {"last_enqueued_collective": 2, "last_started_collective": -1, "last_completed_collective": 2}
    content = {
        "version": "2.5",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": status},
        "entries": [entry],
    }
    for rank in range(2):
        write_dump(tmp_path, rank, content, form="pickle")
    reading, verdict = explain_folder(tmp_path)
    assert as_json(tmp_path, reading, verdict)["verdict"] == "HEALTHY"
    assert reading.formats == {"flight-recorder-pickle": 2}


def test_numbers_as_text_and_groups_by_hash(tmp_path):
    """pytorch/pytorch test_flight_recorder and torchcomms: numbers as text, a group's name is a hash."""
    for rank in range(4):
        seqs = (1, 2) if rank != 1 else (1,)
        entries = [
            {
                "profiling_name": "nccl:all_reduce",
                "state": "completed" if seq == 1 else "started",
                "process_group": ("9a3c5f", "mesh_dp"),
                "input_sizes": [[4, 4]],
                "output_sizes": [[4, 4]],
                "input_dtypes": "float32",
                "collective_seq_id": str(seq),
                "p2p_seq_id": "0",
                "time_created_ns": 0,
            }
            for seq in seqs
        ]
        content = {"version": "2.9", "pg_config": {"9a3c5f": {"ranks": [0, 1, 2, 3]}}, "entries": entries}
        write_dump(tmp_path, rank, content, name="torchcomm_fr_trace_{rank}")
    reading, verdict = explain_folder(tmp_path)
    answer = as_json(tmp_path, reading, verdict)
    assert (answer["verdict"], answer["culprits"]) == ("HANG", ["rank 1"])
