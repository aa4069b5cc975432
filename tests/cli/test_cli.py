"""The command line's manners: quick, one line and exit code 2 for what is wrong, one `up` a directory."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from fabrictime import status
from fabrictime.bench import Figure, Missing, Target, judge, names
from fabrictime.cli import duration_s

ROOT = Path(__file__).resolve().parents[2]


def fabrictime(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "fabrictime.cli", *arguments],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_help_is_there_at_once():
    took_s = []
    for _ in range(5):
        before = os.times()
        done = fabrictime("--help")
        after = os.times()
        took_s.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
        assert done.returncode == 0
    for command in ("up", "status", "tail", "fabric", "bench", "config"):
        assert command in done.stdout
    assert "service" not in done.stdout
    assert min(took_s) < 0.3


def test_help_imports_nothing_heavy():
    code = (
        "import sys, runpy; sys.argv = ['fabrictime', '--help']\n"
        "try: runpy.run_module('fabrictime.cli', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = ('numpy', 'pydantic', 'confluent_kafka', 'faust', 'chdb', 'nicegui')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_is_the_projects():
    assert fabrictime("--version").stdout.strip() == "0.1.0"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("up", "--config", "none.toml"), "fabrictime: none.toml: No such file or directory"),
        (
            ("up", "--fleet", "fleet.toml", "--dir", "{tmp}"),
            "fabrictime: fleet fleet.toml: No such file or directory",
        ),
        (("bench", "nothing"), "fabrictime: bench nothing: expected one of"),
        (
            ("tail", "fabric.probe", "--log", "127.0.0.1:1"),
            "fabrictime: topic 'fabric.probe': not in the table of",
        ),
        (("tail", "fabric.probes", "--from", "now"), "fabrictime: --from 'now': expected beginning or end"),
        (("service", "nobody"), "fabrictime: service 'nobody': expected one of log"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(tmp_path, arguments, line):
    done = fabrictime(*(word.format(tmp=tmp_path) for word in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(line), done.stderr
    assert done.stderr.count("\n") == 1


def test_configuration_mistake_names_file_and_key(tmp_path):
    path = tmp_path / "ft.toml"
    path.write_text("[log]\nport = 70000\n")
    for command in (("up",), ("config", "check"), ("service", "log")):
        done = fabrictime(*command, "--config", str(path))
        assert done.returncode == 2
        assert done.stderr.startswith(
            f"fabrictime: {path}: log.port = 70000: expected a whole number from 0 to 65535"
        )


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("1.5h", 5400), ("500ms", 0.5), ("7", 7)]
)
def test_durations(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-1s", "3 days", "nan", "s"])
def test_what_is_no_duration(text):
    with pytest.raises(typer.BadParameter, match="expected a duration"):
        duration_s(text)


def test_second_up_on_a_directory_names_the_first(tmp_path):
    lock = status.Lock(tmp_path)
    done = fabrictime("up", "--fleet", "none", "--dir", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"fabrictime: {tmp_path}: in use by process {os.getpid()} (")
    lock.release()
    again = status.Lock(tmp_path)
    again.release()


def test_taken_port_names_its_holder(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        path = tmp_path / "ft.toml"
        path.write_text(f"[page]\nport = {port}\n[log]\nport = 0\n[history]\nport = 0\n")
        done = fabrictime("up", "--fleet", "none", "--dir", str(tmp_path / "d"), "--config", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"fabrictime: page.port {port}: in use by process {os.getpid()} (")


def test_status_without_an_up_says_so(tmp_path):
    done = fabrictime("status", "--dir", str(tmp_path))
    assert done.returncode == 1
    assert "no `fabrictime up` is running" in done.stderr


def test_fleet_file_mistakes_name_the_nic(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text("[[nics]]\nhost = 'a'\ndevice = 'eth0'\naddress = '10.0.0.300'\n")
    done = fabrictime("up", "--fleet", str(path), "--dir", str(tmp_path / "d"))
    assert done.returncode == 2
    assert f"fleet {path}: nics[1].address:" in done.stderr


def test_figures_are_judged_against_their_targets():
    targets = {"rate": Target("1/s", ">=", 10), "time": Target("ms", "<=", 5), "gone": Target("x", ">=", 1),
               "context": Target("B")}  # fmt: skip
    found = judge(targets, {"rate": 10.0, "time": Figure(5.1, note="cold"), "gone": Missing("no Java"),
                            "context": 3, "more": Figure(1, "cores"), "bad": float("nan")})  # fmt: skip
    assert found["rate"] == {"value": 10.0, "unit": "1/s", "target": ">= 10", "met": True}
    assert found["time"] == {"value": 5.1, "unit": "ms", "target": "<= 5", "met": False, "note": "cold"}
    assert found["gone"] == {"value": None, "unit": "x", "target": ">= 1", "met": False, "reason": "no Java"}
    assert found["context"]["met"] is None
    assert found["more"]["unit"] == "cores"
    assert found["bad"]["value"] is None
    json.dumps(found, allow_nan=False)


def test_every_bench_states_its_targets():
    listed = json.loads(fabrictime("bench", "--list", "--json").stdout)
    assert sorted(listed) == names()
    assert all(figure["unit"] for figures in listed.values() for figure in figures.values())


def test_a_directory_of_somebody_elses_is_not_closed_to_them(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    (shared / "theirs").touch()
    with pytest.raises(ValueError, match="not empty"):
        status.Lock(shared)
    assert shared.stat().st_mode & 0o777 == 0o755
    (shared / "theirs").unlink()
    status.Lock(shared).release()
    assert shared.stat().st_mode & 0o777 == 0o700
