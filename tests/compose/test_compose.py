"""docker-compose.yml and Dockerfile: pinned, healthy, non-root, loopback only, settings our models take."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fabrictime.commands import cli
from fabrictime.commands.up import services
from fabrictime.commands.up.run import Run
from fabrictime.runtime import config, service
from grafana import build, dashboard_files
from grafana.datasource import PLUGIN, PLUGIN_VERSION

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
COMPOSE = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
OURS = {"topics", "dashboards", "worker", "links", "policy", "sink", "web"}
ONCE = {"topics", "dashboards"}
OPTIONS = re.compile(r"\$\{[A-Z_]+(:-([^}]*))?\}")


def test_the_services_of_the_whole_pipeline_are_there():
    assert set(SERVICES) == OURS | {"kafka", "clickhouse", "grafana"}
    assert set(COMPOSE["volumes"]) == {"alert-rules", "kafka", "clickhouse", "dashboards", "grafana"}


def test_the_services_are_those_of_up(tmp_path):
    loaded = config.load(None, {"up": {"fleet": "none", "data_directory": str(tmp_path)}})
    run = Run(loaded, tmp_path, None, False)
    mine = {
        child.argv[child.argv.index("fabrictime.runtime.service") + 1] for child in services.children(run)
    }
    stands_for = {"kafka": "log", "clickhouse": "history"}
    theirs = {stands_for.get(name, name) for name in SERVICES}
    assert mine <= theirs
    assert theirs - mine == {"grafana", *ONCE}


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned_and_nobody_is_root(name):
    image, _, tag = SERVICES[name]["image"].partition(":")
    assert re.fullmatch(r"\d+\.\d+(\.\d+)*", tag), f"{image}: {tag}"
    user = SERVICES[name]["user"].split(":")[0]
    assert int(user) > 0
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert not SERVICES[name].get("privileged")
    assert "network_mode" not in SERVICES[name]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_alone(name):
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


@pytest.mark.parametrize("name", sorted(set(SERVICES) - ONCE))
def test_every_lasting_service_has_a_health_check_and_comes_back(name):
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_services_wait_for_their_dependencies():
    assert SERVICES["topics"]["depends_on"]["kafka"]["condition"] == "service_healthy"
    for name in ONCE:
        assert SERVICES[name]["restart"] == "no"
    assert SERVICES["grafana"]["depends_on"]["dashboards"]["condition"] == "service_completed_successfully"
    for name in ("worker", "links", "policy", "sink"):
        assert SERVICES[name]["depends_on"]["topics"]["condition"] == "service_completed_successfully"
    for name in ("sink", "web"):
        assert SERVICES[name]["depends_on"]["clickhouse"]["condition"] == "service_healthy"
    for each in SERVICES.values():
        for other, need in each.get("depends_on", {}).items():
            assert need["condition"] != "service_healthy" or "test" in SERVICES[other]["healthcheck"]


def test_workers_scale():
    worker = SERVICES["worker"]
    assert worker["deploy"]["replicas"] >= 2
    assert "container_name" not in worker
    assert "ports" not in worker
    assert "hostname" not in worker


def test_no_password_stands_in_the_file():
    text = FILE.read_text(encoding="utf-8")
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        if "PASSWORD" in key.upper() and value.strip():
            assert "/run/secrets/" in value or value.strip().startswith("FABRICTIME_"), line
    for secret in COMPOSE["secrets"].values():
        assert re.fullmatch(r"FABRICTIME_(\w+_PASSWORD|PAGE_USERS)", secret["environment"])
    example = (ROOT / "docker/env.example").read_text(encoding="utf-8")
    for secret in COMPOSE["secrets"].values():
        assert f"\n{secret['environment']}=\n" in example
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_secrets_are_readable_by_their_service_alone():
    for name, each in SERVICES.items():
        for secret in each.get("secrets", []):
            assert secret["source"] in COMPOSE["secrets"]
            assert secret["uid"] == each["user"].split(":")[0], name
            assert secret["mode"] in (0o400, 400), name


def test_mounted_files_are_there():
    for name, each in SERVICES.items():
        for volume in each.get("volumes", []):
            source, target, *mode = volume.split(":")
            if source.startswith("./"):
                assert (ROOT / source).exists(), f"{name}: {source}"
                assert mode == ["ro"], volume
                assert target.startswith("/")
            else:
                assert source in COMPOSE["volumes"], volume
    assert os.access(ROOT / "docker/clickhouse-reader.sh", os.X_OK)


@pytest.fixture
def settings():
    found = config.load(ROOT / "docker/fabrictime.toml")
    found.check()
    return found


def test_every_service_accepts_our_settings_file(settings):
    assert settings.streams.kafka.bootstrap == "kafka:9092"
    history = settings.streams.history
    assert (history.url, history.user) == ("http://clickhouse:8123", "fabrictime")
    assert str(history.password_file) == "/run/secrets/writer_password"
    assert str(settings.web.history_url).rstrip("/") == "http://clickhouse:8123"
    assert settings.web.history_user == "reader"
    assert str(settings.web.history_token_file) == "/run/secrets/reader_password"
    assert str(settings.web.login.users_file) == "/run/secrets/page_users"
    assert set(tomllib.loads((ROOT / "docker/fabrictime.toml").read_text())) <= set(config.TABLES)


def test_addresses_agree_between_settings_and_services(settings):
    kafka = SERVICES["kafka"]["environment"]
    host, _, port = settings.streams.kafka.bootstrap.partition(":")
    assert host in SERVICES
    assert f"INSIDE://:{port}" in kafka["KAFKA_LISTENERS"]
    advertised = OPTIONS.sub(lambda found: found[2], kafka["KAFKA_ADVERTISED_LISTENERS"])
    assert advertised == "INSIDE://kafka:9092,HOSTS://127.0.0.1:19092"
    assert SERVICES["kafka"]["ports"] == ["127.0.0.1:19092:9094"]
    assert settings.web.history_url.host in SERVICES
    assert SERVICES["web"]["ports"] == [f"127.0.0.1:8480:{settings.web.port}"]
    grafana = SERVICES["grafana"]["environment"]
    assert (grafana["FABRICTIME_HISTORY_HOST"], grafana["FABRICTIME_HISTORY_PORT"]) == ("clickhouse", "8123")
    source = (ROOT / "grafana/provisioning/datasources/fabrictime.yaml").read_text()
    for name in re.findall(r"\$(FABRICTIME_\w+)", source):
        assert name in grafana
    assert grafana["GF_PLUGINS_PREINSTALL_SYNC"] == f"{PLUGIN}@{PLUGIN_VERSION}"


def test_grafana_reads_the_dashboards_that_the_image_writes(tmp_path, monkeypatch):
    (name, folder), (rules, rules_folder) = (v.split(":") for v in SERVICES["dashboards"]["volumes"])
    assert SERVICES["dashboards"]["command"] == ["grafana", "write", folder, "--rules", rules_folder]
    line = next(each for each in (ROOT / "Dockerfile").read_text().splitlines() if "install -d" in each)
    assert line.split()[-2:] == [folder, rules_folder], "a new volume has the owner of the image's folder"
    assert f"{rules}:/etc/grafana/provisioning/alerting:ro" in SERVICES["grafana"]["volumes"]
    assert SERVICES["dashboards"]["user"] == ":".join(re.findall(r"-[og] (\d+)", line))
    [mounted] = [each.split(":") for each in SERVICES["grafana"]["volumes"] if each.startswith(f"{name}:")]
    assert mounted[2] == "ro"
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == mounted[1]
    assert home.stem in build.DASHBOARDS
    [provider] = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/fabrictime.yaml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == mounted[1]
    build.main([str(tmp_path / "built")])
    monkeypatch.setattr(dashboard_files, "FOLDER", tmp_path / "built")
    folders = str(tmp_path / "volume"), "--rules", str(tmp_path / "rules")
    done = CliRunner().invoke(cli.app, ["grafana", "write", *folders, "--page", "https://page.example/"])
    assert done.exit_code == 0, done.output
    board = json.loads((tmp_path / "volume" / home.name).read_text())
    assert {"page": "https://page.example"}.items() <= {
        variable["name"]: variable["query"] for variable in board["templating"]["list"]
    }.items()
    [group] = json.loads((tmp_path / "rules/fabrictime.json").read_text())["groups"]
    assert (group["folder"], group["interval"]) == ("fabrictime", "60s")
    refused = CliRunner().invoke(cli.app, ["grafana", "write", *folders, "--page", "page.example"])
    assert refused.exit_code == 2
    assert "expected http://host:port" in refused.output


@pytest.mark.parametrize("name", sorted(OURS - {"dashboards"}))
def test_our_commands_are_commands(name):
    command = SERVICES[name]["command"]
    if command[0] == "service":
        assert command[1] in service.SERVICES
    else:
        assert command[:2] == ["topics", "create"]
    assert command[-2] == "--config"
    mounted = SERVICES[name]["volumes"][0].split(":")[1]
    assert command[-1] == mounted


def test_workers_health_asks_for_the_group_that_they_form(settings):
    for name, suffix in (("worker", ""), ("links", "-links"), ("policy", "-policy"), ("sink", "-sink")):
        *_, config, group = SERVICES[name]["healthcheck"]["test"]
        assert (config, group) == (SERVICES[name]["command"][-1], settings.streams.group + suffix)


def test_the_dockerfile_is_pinned_multi_stage_and_not_root():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base) for base in bases)
    final = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert [line for line in final if line.startswith("USER ")] == ["USER 10001:10001"]
    assert not any("gcc" in line for line in final)
    assert SERVICES["worker"]["user"] == "10001:10001"
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), line
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"][
        "packages"
    ]
    for package in packages:
        folder = package.partition("/")[0]
        assert f"COPY {folder} {folder}" in lines
        assert f"!{folder}" in ignored


def _docker(*command):
    if shutil.which("docker") is None:
        pytest.skip("no docker command")
    return subprocess.run(
        ["docker", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **{secret["environment"]: "x" for secret in COMPOSE["secrets"].values()}},
    )


def test_docker_compose_takes_the_file():
    if _docker("compose", "version").returncode:
        pytest.skip("this docker has no compose plugin")
    done = _docker("compose", "config", "--quiet")
    assert done.returncode == 0, done.stderr


@pytest.mark.container
@pytest.mark.timeout(900)
def test_the_whole_stands_up():
    if _docker("info").returncode:
        pytest.skip("no container engine answers")
    if _docker("compose", "version").returncode:
        pytest.skip("this docker has no compose plugin")
    from testcontainers.compose import DockerCompose

    os.environ |= {secret["environment"]: "test-only" for secret in COMPOSE["secrets"].values()}
    os.environ["FABRICTIME_PAGE_USERS"] = "test act test-only-test-only-token"
    with DockerCompose(str(ROOT), build=True, wait=True) as stack:
        out, _, code = stack.exec_in_container(
            [
                "clickhouse-client",
                "--user",
                "reader",
                "--password",
                "test-only",
                "-q",
                "SHOW TABLES FROM fabrictime",
            ],
            "clickhouse",
        )
        assert code == 0
        assert "delays_1s" in out
