"""Folders: damaged dumps, names with process ids, no known form."""

from __future__ import annotations

import pytest

from fabrictime.postmortem.report import explain_folder
from schemas.input_error import InputError
from tests.fabrictime.postmortem.job_files import call, dump, explained, write_dump, write_dumps


def test_a_folder_without_a_known_form_is_refused_in_one_line(tmp_path):
    (tmp_path / "notes.md").write_text("nothing here")
    with pytest.raises(InputError, match="expected one of flight-recorder-json") as caught:
        explain_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_cut_dump_is_listed_and_its_rank_is_missing(tmp_path):
    write_dumps(tmp_path, lambda rank: [call(seq) for seq in range(1, 20)], form="pickle")
    cut = tmp_path / "nccl_trace_rank_3"
    cut.write_bytes(cut.read_bytes()[:500])
    answer = explained(tmp_path)
    assert [entry["file"] for entry in answer["unread"]] == ["nccl_trace_rank_3"]
    assert answer["ranks"]["missing"] == [3]
    assert any("the file of rank 3 cannot be read" in line for line in answer["missing"])


def test_a_dump_of_a_process_id_in_its_name_keeps_its_rank(tmp_path):
    for rank in range(4):
        content = dump([call(seq) for seq in range(1, 9)], {"0": ("default_pg", range(4))})
        write_dump(tmp_path, rank, content, name=f"nccl_trace_rank_{rank}_pid{4000 + rank}")
    assert explained(tmp_path)["ranks"] == {"expected": 4, "seen": 4, "missing": []}
