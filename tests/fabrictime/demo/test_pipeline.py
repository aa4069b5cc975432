"""Where the tour may run: on the testbed's fabric with the embedded log, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fabrictime.demo import pipeline
from fabrictime.demo.pipeline import RATE_BPS, Refused, open_pipeline, refusal, settings_for
from fabrictime.runtime import status
from fabrictime.runtime.config import Config, load


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    return load(None, {"up": {"data_directory": str(tmp_path / "data")}})


def running(config: Config, fleet: str = "fabric", **fields: Any) -> status.Lock:
    """Hold the data directory as an `up` does."""
    lock = status.Lock(config.up.data_directory)
    children = [{"name": "log", "fault": None}, {"name": "web", "fault": fields.pop("fault", None)}]
    addresses = {"log": "127.0.0.1:9", "web": "http://127.0.0.1:8/"}
    state = {"started_s": 0.0, "fleet": fleet, "addresses": addresses, "children": children, **fields}
    status.write(config.up.data_directory, state)
    return lock


@pytest.mark.parametrize("fleet", ["none", "loopback", "sim", "fleet.toml"])
def test_a_fleet_that_is_not_the_testbed_is_refused_in_one_line(fleet: str) -> None:
    reason = refusal(fleet, own_log=True)
    assert reason is not None
    assert reason.startswith(f"fleet {fleet}: ")
    assert "\n" not in reason


def test_a_log_that_other_hosts_may_use_is_refused() -> None:
    assert "the mode of all" in str(refusal("fabric", own_log=False))
    assert refusal("fabric", own_log=True) is None


def test_the_running_pipeline_is_used(config: Config) -> None:
    lock = running(config)
    with open_pipeline(config, pytest.fail) as running_pipeline:
        assert running_pipeline.cluster.bootstrap == "127.0.0.1:9"
        assert running_pipeline.web == "http://127.0.0.1:8/"
    lock.release()


def test_a_running_real_fleet_and_a_shared_log_are_refused(config: Config) -> None:
    lock = running(config, fleet="fleet.toml")
    with pytest.raises(Refused, match=r"fleet fleet\.toml"), open_pipeline(config, pytest.fail):
        pass
    lock.release()
    lock = running(config, children=[{"name": "web", "fault": None}])
    with pytest.raises(Refused, match="log: "), open_pipeline(config, pytest.fail):
        pass
    lock.release()


def test_a_part_that_does_not_work_is_announced_and_the_tour_goes_on(config: Config) -> None:
    lock = running(config, fault="exit code 2")
    announced: list[str] = []
    with open_pipeline(config, announced.append):
        assert announced == ["A part of the pipeline does not work, web: exit code 2."]
    lock.release()


@pytest.mark.parametrize("up", [{"fleet": "none"}, {"fleet": "sim:64"}, {"log_url": "kafka:9092"}])
def test_settings_for_another_fleet_start_nothing(config: Config, up: dict[str, str]) -> None:
    with pytest.raises(Refused), open_pipeline(config.replaced({"up": up}), pytest.fail):
        pass


def test_the_tour_waits_for_an_up_that_is_starting(config: Config) -> None:
    lock = status.Lock(config.up.data_directory)
    announced: list[str] = []

    def announce(text: str) -> None:
        announced.append(text)
        lock.release()
        running(config)

    with open_pipeline(config, announce):
        assert announced == ["`fabrictime up` is starting: the tour waits for it."]


def test_an_up_that_does_not_start_is_reported(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "START_S", 0.0)
    lock = status.Lock(config.up.data_directory)
    with pytest.raises(status.NotReady, match="just starting"), open_pipeline(config, lambda _: None):
        pass
    lock.release()


def test_an_own_fabric_has_links_that_two_processors_carry_unless_the_settings_differ(config: Config) -> None:
    assert settings_for(config)["fabric"] == {"host_rate_bps": RATE_BPS, "fabric_rate_bps": RATE_BPS}
    changed = settings_for(config.replaced({"fabric": {"hosts": 16, "host_rate_bps": 20_000_000}}))
    assert changed["fabric"] == {"hosts": 16, "host_rate_bps": 20_000_000, "fabric_rate_bps": RATE_BPS}
    assert set(settings_for(config)) == {"up", "fabric"}, "tables without settings stay out"
