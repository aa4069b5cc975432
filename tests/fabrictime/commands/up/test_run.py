"""Which services a run of `up` starts: everything on one machine, the agent alone on one of many hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fabrictime.commands.up import pipeline, services
from fabrictime.commands.up.run import Run
from fabrictime.runtime import config
from producers.settings import NicSettings

SERVER = {"log", "history", "worker", "links", "policy", "sink", "web"}
NIC = NicSettings(host="h1", device="eth0", address="10.0.0.1")


def kinds_of(directory: Path, listed: bool, **given: Any) -> set[str]:
    settings = config.load(None, {"up": {"data_directory": str(directory), **given}})
    run = Run(settings, directory, None, False, fleet="fleet.toml", listed=listed, nics=[NIC])
    return {
        child.argv[child.argv.index("fabrictime.runtime.service") + 1]
        for child in services.children(run)
        if hasattr(child, "argv")
    }


def test_another_kafka_than_the_log_of_up_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Services would follow that Kafka, while `up` started a log that nobody reads."""
    file = tmp_path / "f.toml"
    file.write_text(f'[up]\nfleet = "none"\ndata_directory = "{tmp_path}/d"\n[kafka]\nbootstrap = "k:9092"\n')
    with pytest.raises(
        ValueError, match=r"f\.toml: kafka\.bootstrap = k:9092: expected up\.log_url = 'k:9092'"
    ):
        pipeline.main(file, {}, for_s=None, as_json=False)
    assert not (tmp_path / "d").exists()


def test_one_of_many_hosts_starts_its_agent_alone(tmp_path: Path) -> None:
    assert kinds_of(tmp_path, True, log_url="kafka:9092") == {"agent"}


def test_an_agent_alone_reads_no_records_of_the_fleet(tmp_path: Path) -> None:
    def run(for_s: float | None, **up: Any) -> Run:
        settings = config.load(None, {"up": {"log_url": "kafka:9092", **up}})
        return Run(settings, tmp_path, for_s, False, listed=True, nics=[NIC])

    assert not run(None).follows_fleet
    assert run(None).own_shards == ("fabric",)
    assert run(None, services="on").own_shards == ()
    assert run(10.0).follows_fleet, "the scorecard needs them"
    assert run(None, services="on").follows_fleet


def test_an_actuator_that_acts_has_a_process_of_its_own(tmp_path: Path) -> None:
    assert kinds_of(tmp_path, True, log_url="kafka:9092", act="act") == {"agent", "act"}
    assert kinds_of(tmp_path, True, log_url="kafka:9092", act="off") == {"agent"}
    assert "act" in kinds_of(tmp_path, False)


def test_services_are_started_where_they_are_wanted(tmp_path: Path) -> None:
    kinds = kinds_of(tmp_path, True, log_url="kafka:9092", history_url="http://c:8123", services="on")
    assert SERVER - {"log", "history"} <= kinds
    assert not kinds & {"log", "history"}


@pytest.mark.parametrize(("listed", "given"), [(True, {}), (False, {"log_url": "kafka:9092"})])
def test_one_machine_starts_everything(tmp_path: Path, listed: bool, given: dict[str, str]) -> None:
    assert kinds_of(tmp_path, listed, **given) >= SERVER - {"log"}


CHAT = {"notify": {"receivers": {"chat": {"type": "webhook", "url": "http://c.invalid"}}}}
SLURM = {"actuators": {"nodes": {"scheduler": "slurm"}}}


@pytest.mark.parametrize(("name", "tables"), [("notify", CHAT), ("drains", SLURM)])
def test_a_service_starts_where_it_has_a_task_and_not_with_an_agent_alone(
    tmp_path: Path, name: str, tables: dict[str, Any]
) -> None:
    for listed, log_url, is_started in ((False, None, True), (True, "kafka:9092", False)):
        up = {"data_directory": str(tmp_path), "log_url": log_url}
        settings = config.load(None, {"up": {k: v for k, v in up.items() if v is not None}, **tables})
        run = Run(settings, tmp_path, None, False, fleet="fleet.toml", listed=listed, nics=[NIC])
        names = {child.name for child in services.children(run)}
        assert (name in names) is is_started


def test_an_agent_has_no_page_and_only_a_known_history(tmp_path: Path) -> None:
    settings = config.load(None, {"up": {"data_directory": str(tmp_path), "log_url": "kafka:9092"}})
    run = Run(settings, tmp_path, None, False, fleet="fleet.toml", listed=True, nics=[NIC])
    assert run.web_url is None
    assert set(run.addresses()) == {"log", "clock"}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["log", "history"]),
        ({"log_url": "kafka:9092"}, []),
        ({"log_url": "kafka:9092", "services": "on"}, ["history"]),
        ({"history_url": "http://c:8123"}, ["log"]),
    ],
)
def test_only_folders_of_services_that_run_here_count(
    tmp_path: Path, given: dict[str, str], names: list[str]
) -> None:
    settings = config.load(None, {"up": {"data_directory": str(tmp_path), **given}})
    run = Run(settings, tmp_path, None, False, fleet="fleet.toml", listed=True, nics=[NIC])
    assert run.data_folders == [tmp_path / name for name in names]
