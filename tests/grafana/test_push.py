"""`fabrictime grafana push`: against a server that answers as Grafana does, and a real one."""

import json
import shutil
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grafana import dashboard_files
from grafana.alert_rules import RULES
from grafana.build import DASHBOARDS
from grafana.datasource import PLUGIN, PLUGIN_VERSION, UID
from grafana.push import PushError, push

TOKEN = "glsa_right"


class Grafana(ThreadingHTTPServer):
    """What push asks of Grafana 11: statuses and messages as its HTTP API documents them."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.plugins = {PLUGIN}
        self.sources, self.folders, self.boards, self.provisioned, self.asked = {}, {}, {}, set(), []
        self.role, self.login_page, self.rules = "Admin", False, {}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, code, **body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_any(self):
        server, path = self.server, self.path.removeprefix("/grafana")
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or "null")
        server.asked.append((self.command, path))
        if server.login_page:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>log in</html>")
            return None
        if path == "/api/health":
            return self.answer(200, database="ok", version="11.6.0")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, message="Invalid API key")
        if server.role == "Viewer":
            return self.answer(403, message="You'll need additional permissions")
        match [self.command, *path.removeprefix("/api/").split("/")]:
            case ["GET", "plugins", name, "settings"]:
                known = name in server.plugins
                return self.answer(200, id=name) if known else self.answer(404, message="Plugin not found")
            case ["GET", "datasources", "uid", uid]:
                found = server.sources.get(uid)
                return (
                    self.answer(200, **found) if found else self.answer(404, message="Data source not found")
                )
            case ["POST", "datasources"]:
                if any(body["name"] == other["name"] for other in server.sources.values()):
                    return self.answer(409, message="data source with the same name already exists")
                server.sources[body["uid"]] = {**body, "id": 1, "version": 1}
                return self.answer(200, message="Datasource added")
            case ["PUT", "datasources", "uid", uid]:
                if body["version"] != server.sources[uid]["version"]:
                    return self.answer(409, message="Datasource has already been updated by someone else")
                server.sources[uid] = {**body, "id": 1, "version": body["version"] + 1}
                return self.answer(200, message="Datasource updated")
            case ["GET", "folders", uid]:
                found = server.folders.get(uid)
                return self.answer(200, **found) if found else self.answer(404, message="folder not found")
            case ["POST", "folders"]:
                if any(body["title"] == other["title"] for other in server.folders.values()):
                    return self.answer(409, message="a folder with the name already exists")
                server.folders[body["uid"]] = body
                return self.answer(200, **body)
            case ["POST", "dashboards", "db"]:
                board = body["dashboard"]
                if board["uid"] in server.provisioned:
                    return self.answer(412, message="Cannot save provisioned dashboard", status="name-exists")
                if body["folderUid"] not in server.folders:
                    return self.answer(400, message="folder not found")
                old = server.boards.get(board["uid"])
                if old and not body.get("overwrite"):
                    return self.answer(
                        412, message="The dashboard has been changed", status="version-mismatch"
                    )
                version = old["version"] + 1 if old else 1
                server.boards[board["uid"]] = {**board, "version": version}
                return self.answer(200, version=version, url=f"/d/{board['uid']}/x", status="success")
            case ["PUT", "v1", "provisioning", "folder", folder, "rule-groups", group]:
                if folder not in server.folders:
                    return self.answer(404, message="folder not found")
                server.rules[group] = body
                return self.answer(200, **body)
        return self.answer(404, message="Not found")

    do_GET = do_POST = do_PUT = handle_any


@pytest.fixture(autouse=True)
def _built(dashboards, monkeypatch):
    monkeypatch.setattr(dashboard_files, "FOLDER", dashboards)


@pytest.fixture
def grafana():
    server = Grafana()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file


def test_push_puts_everything_there_and_again_updates_it(grafana, token):
    history = {"history_url": "http://10.0.0.5:8123", "history_password": "p"}
    lines = push(grafana.url, token, **history)
    assert len(lines) == 2 + len(DASHBOARDS)
    assert lines[0] == f"data source {UID}: created, 10.0.0.5:8123"
    assert set(grafana.boards) == set(DASHBOARDS)
    assert grafana.sources[UID]["secureJsonData"] == {"password": "p"}
    again = push(grafana.url, token, history_url="http://10.0.0.6:8123", history_password="p")
    assert again[0] == f"data source {UID}: updated, 10.0.0.6:8123"
    assert grafana.sources[UID]["jsonData"]["host"] == "10.0.0.6"
    assert {board["version"] for board in grafana.boards.values()} == {2}
    assert len(grafana.folders) == 1
    assert ("PUT", f"/api/datasources/uid/{UID}") in grafana.asked


def test_without_a_history_url_the_data_source_stays_as_it_is(grafana, token):
    assert "set its password" in push(grafana.url, token)[0]
    grafana.sources[UID]["jsonData"]["host"] = "mine"
    assert push(grafana.url, token)[0] == f"data source {UID}: is there, mine"
    assert grafana.sources[UID]["jsonData"]["host"] == "mine"


def test_rules_and_the_pages_address_are_put_there_on_request(grafana, token):
    push(grafana.url, token)
    assert grafana.rules == {}
    lines = push(grafana.url, token, page_url="https://page.example:8480/", has_rules=True)
    assert lines[-1] == f"alert rules fabrictime: {len(RULES)} rules, evaluated every 60 s"
    [(name, group)] = grafana.rules.items()
    assert (name, group["folderUid"], len(group["rules"])) == ("fabrictime", "fabrictime", len(RULES))
    for board in grafana.boards.values():
        values = {variable["name"]: variable["query"] for variable in board["templating"]["list"]}
        assert values["page"] == "https://page.example:8480"
    with pytest.raises(ValueError, match=r"page URL 'page\.example': expected http"):
        push(grafana.url, token, page_url="page.example")


def test_a_grafana_below_a_path(grafana, token):
    assert len(push(f"{grafana.url}/grafana/", token)) == 2 + len(DASHBOARDS)
    assert all(path.startswith("/api/") for _, path in grafana.asked)


def test_a_refusal_by_grafana_is_one_line(grafana, token, tmp_path):
    def refused(match, **options):
        with pytest.raises(PushError, match=match) as error:
            push(grafana.url, token, **options)
        assert "\n" not in str(error.value)

    grafana.plugins.clear()
    refused("not installed")
    grafana.plugins.add(PLUGIN)
    grafana.sources["other"] = {"name": "fabrictime history", "version": 1}
    refused("another data source has this name")
    grafana.sources.clear()
    grafana.folders["other"] = {"title": "fabrictime"}
    refused("another folder has this name")
    grafana.folders.clear()
    grafana.provisioned.add("fabrictime-clocks")
    refused("dashboard fabrictime-clocks: .*provisioned dashboard")
    token.write_text("wrong")
    refused("Grafana answers 401, .*the token or password is wrong or has expired")


def test_each_refusal_names_the_problem_and_the_remedy(grafana, token):
    def refused(match, **options):
        with pytest.raises(PushError, match=match) as error:
            push(grafana.url, token, **options)
        assert "\n" not in str(error.value)
        assert "JSONDecodeError" not in str(error.value)

    grafana.role = "Viewer"
    refused("plugin .*Grafana answers 403, You'll need additional permissions; .*role Admin")
    grafana.role, grafana.login_page = "Admin", True
    refused("a page answers in place of Grafana's API, perhaps a login page")
    grafana.login_page = False
    grafana.sources[UID] = {"name": "x", "version": 1, "readOnly": True}
    refused("is provisioned, .*change its provisioning file", history_url="http://10.0.0.5:8123")
    assert push(grafana.url, token)[0] == f"data source {UID}: is there, None"


def test_unusable_input_is_refused_before_anything_is_sent(grafana, token, tmp_path):
    for url, options in (("ftp://x", {}), (grafana.url, {"history_url": "clickhouse:8123"})):
        with pytest.raises(ValueError, match="expected http"):
            push(url, token, **options)
    with pytest.raises(ValueError, match="no token"):
        push(grafana.url)
    empty = tmp_path / "empty"
    empty.write_text("")
    with pytest.raises(ValueError, match="empty"):
        push(grafana.url, empty)
    with pytest.raises(PushError):
        push("http://127.0.0.1:1", token)
    assert grafana.boards == {}


@pytest.mark.container
def test_a_real_grafana_takes_it():
    if shutil.which("docker") is None:
        pytest.skip("no docker command")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no container engine answers")
    from testcontainers.core.container import DockerContainer

    container = (
        DockerContainer("grafana/grafana:11.6.2")
        .with_env("GF_SECURITY_ADMIN_PASSWORD", "test-only")
        .with_env("GF_PLUGINS_PREINSTALL_SYNC", f"{PLUGIN}@{PLUGIN_VERSION}")
        .with_exposed_ports(3000)
    )
    with container:
        url = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(3000)}"
        end = time.monotonic() + 90
        while True:
            try:
                first = push(url, user="admin", password="test-only", history_password="x", has_rules=True)
                break
            except PushError:
                assert time.monotonic() < end
                time.sleep(1)
        assert len(first) == 3 + len(DASHBOARDS)
        assert "is there" in push(url, user="admin", password="test-only")[0]
