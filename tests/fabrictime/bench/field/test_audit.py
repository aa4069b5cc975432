"""The results of a case's host are compared with the right ones."""

import pytest

from fabrictime.bench.field._audit import check_fault
from fabrictime.bench.field._cases import expected
from fabrictime.bench.field._host import host_of


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"verdict": "FAILED", "subjects": ["/data"]}, ""),
        ({"verdict": "PASSED"}, "expected PASSED"),
        ({"verdict": "FAILED", "subjects": ["/"]}, "names /data, expected /"),
        ({"verdict": "FAILED", "contains": ["no such text"]}, "does not contain"),
    ],
)
def test_verdict_subjects_and_text_are_compared(table, fault) -> None:
    host = host_of({"append": {"/etc/fstab": "nfs1:/data /data nfs4 rw 0 0\n"}})
    host.files["/proc/mounts"] = "/dev/nvme0n1p2 / ext4 rw 0 0\nnfs1:/home /shared\\040home nfs4 rw 0 0\n"
    [expectation] = expected([table], "storage.fstab")
    found = check_fault(expectation, host)
    assert fault in found
    assert bool(found) == bool(fault)


def test_one_of_several_checks_may_be_the_right_one() -> None:
    host = host_of({"files": {"/proc/loadavg": "90.0 90.0 90.0 1/1 1\n"}})
    [right, wrong] = expected(
        [{"verdict": "WARNING", "check": "software.*"}, {"verdict": "FAILED", "check": "node.f*"}]
    )
    assert check_fault(right, host) == ""
    assert "none of node.f*" in check_fault(wrong, host)
