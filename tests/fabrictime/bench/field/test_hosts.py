"""Whole hosts are composed of parts; their false errors, found faults and open checks are counted."""

from fabrictime.bench import Missing
from fabrictime.bench.field import hosts
from fabrictime.bench.field._cases import load
from fabrictime.bench.field._hosts import HostRun, healthy_host, run_host


def test_each_host_can_be_made_and_its_gpus_are_on_pcie() -> None:
    cases = [case for case in load().values() if case.kind == "hosts"]
    assert len(cases) >= 30
    assert len({case.check for case in cases}) >= 10
    for case in cases:
        host = healthy_host(case)
        gpus = case.table["machine"].get("nvidia", case.table["machine"].get("amd", {}))
        assert set(gpus.get("addresses", ())) <= set(host.names("/sys/bus/pci/devices") if gpus else ())


def test_the_small_virtual_machine_has_no_error_and_its_fault_is_found() -> None:
    run = run_host(load()["H27"])
    assert run.errors == []
    assert run.missed == ""
    assert run.unanswered > 0.3


def test_the_share_of_open_checks_needs_a_count_of_the_first_commit() -> None:
    run = HostRun((), "not found")
    values = hosts.figures({"no-such-host": run}, lambda line: None)
    assert isinstance(values["skipped_over_89f413fc"], Missing)
    assert values["whole_hosts"] == 1
