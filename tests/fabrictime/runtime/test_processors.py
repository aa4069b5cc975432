"""Processors by affinity and by the quota of cgroups, version 2 and 1."""

import os

import pytest

from fabrictime.runtime.processors import usable_processors

ALL = len(os.sched_getaffinity(0))


def made(tmp_path, cgroup, files):
    (tmp_path / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return usable_processors(tmp_path / "cgroup", tmp_path / "mount")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ALL),
        ({"a/b/cpu.max": "max 100000\n"}, ALL),
        ({"a/b/cpu.max": "50000 100000\n"}, 1),
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"a/b/cpu.max": f"{(ALL + 9) * 100000} 100000\n"}, ALL),
        ({"a/b/cpu.max": "nonsense\n"}, ALL),
    ],
)
def test_quota_of_version_2(tmp_path, files, expected):
    assert made(tmp_path, "0::/a/b\n", files) == expected


def test_quota_of_version_1(tmp_path):
    v1 = {
        "cpu,cpuacct/docker/1/cpu.cfs_quota_us": "100000\n",
        "cpu,cpuacct/docker/1/cpu.cfs_period_us": "100000\n",
    }
    assert made(tmp_path, "4:cpu,cpuacct:/docker/1\n1:name=systemd:/x\n", v1) == 1
    unlimited = {**v1, "cpu,cpuacct/docker/1/cpu.cfs_quota_us": "-1\n"}
    assert made(tmp_path, "4:cpu,cpuacct:/docker/1\n", unlimited) == ALL
