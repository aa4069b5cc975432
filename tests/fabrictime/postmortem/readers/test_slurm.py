"""Accounting of Slurm in the form of a public report, reduced and with other names.

Each test names its source.
"""

from __future__ import annotations

import json

from tests.fabrictime.postmortem.job_files import explained_logs


def test_slurm_accounting_of_a_failed_step(tmp_path):
    """A public report from Frontier: the step failed with code 255 on two nodes; no task is named."""
    text = (
        "JobID|JobName|Partition|QOS|State|ExitCode|Elapsed|NNodes|NodeList\n"
        "4953690|diag|batch|debug|FAILED|255:0|00:00:26|2|frontier[01515,01517]\n"
        "4953690.0|env|||FAILED|255:0|00:00:02|2|frontier[01515,01517]\n"
    )
    answer = explained_logs(tmp_path, sacct=text)
    assert answer["formats"] == {"slurm-accounting": 1}
    assert "exit code 255 on frontier01515, frontier01517" in json.dumps(answer)
