"""The command line: quick start, one line and exit code 2 for a mistake, one `up` per directory."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from fabrictime.bench import Figure, Missing, Target, evaluate, names, run_bench
from fabrictime.commands.options import duration_s
from fabrictime.commands.up import pipeline as up
from fabrictime.runtime import status

ROOT = Path(__file__).resolve().parents[3]


def fabrictime(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "fabrictime", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def processor_s(run):
    """Processor time that the child of `run` takes, and what `run` returns."""
    before = os.times()
    done = run()
    after = os.times()
    return (after.children_user + after.children_system - before.children_user - before.children_system), done


def test_help_takes_little_more_than_the_libraries_that_print_it():
    took, libraries_s = [], []
    bare = "import typer, typer.rich_utils, rich.table, rich.panel"
    for _ in range(5):
        took_s, done = processor_s(lambda: fabrictime("--help"))
        took.append(took_s)
        assert done.returncode == 0
        libraries_s.append(processor_s(lambda: subprocess.run([sys.executable, "-c", bare], check=True))[0])
    for command in ("up", "status", "tail", "fabric", "bench", "config"):
        assert command in done.stdout
    assert "service" not in done.stdout
    # neighbours in time, as the speed of a shared machine varies
    assert min(own_s / bare_s for own_s, bare_s in zip(took, libraries_s, strict=True)) < 2


def test_help_imports_nothing_heavy():
    code = (
        "import sys, runpy; sys.argv = ['fabrictime', '--help']\n"
        "try: runpy.run_module('fabrictime.commands.cli', run_name='__main__')\n"
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
            ("bench", "detect", "nothing"),
            "fabrictime: bench detect nothing: expected paths, dead_links, links",
        ),
        (("bench", "log", "part"), "fabrictime: bench log part: expected no part"),
        (
            ("tail", "fabric.probe", "--log", "127.0.0.1:1"),
            "fabrictime: topic 'fabric.probe': not in the table of",
        ),
        (("tail", "fabric.probes", "--from", "now"), "fabrictime: --from 'now': expected beginning or end"),
        (("service", "nobody"), "fabrictime: service 'nobody': expected one of log"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(tmp_path, arguments, line):
    done = fabrictime(*(argument.format(tmp=tmp_path) for argument in arguments), cwd=tmp_path)
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
def test_an_invalid_duration_is_refused(text):
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
        path.write_text(f"[web]\nport = {port}\n[log]\nport = 0\n[history]\nport = 0\n")
        done = fabrictime("up", "--fleet", "none", "--dir", str(tmp_path / "d"), "--config", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"fabrictime: web.port {port}: in use by process {os.getpid()} (")


@pytest.mark.parametrize("directory", ["/dev/null", "/proc/x"])
def test_a_path_that_cannot_be_the_data_directory_is_named(directory):
    done = fabrictime("up", "--fleet", "none", "--dir", directory)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{directory}: " in done.stderr
    assert "expected a directory" in done.stderr
    assert "Errno" not in done.stderr


def test_status_without_an_up_is_one_line(tmp_path):
    done = fabrictime("status", "--dir", str(tmp_path))
    assert done.returncode == 1
    assert "no `fabrictime up` is running" in done.stderr


def test_fleet_file_mistakes_name_the_nic(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text("[[nics]]\nhost = 'a'\ndevice = 'eth0'\naddress = '10.0.0.300'\n")
    done = fabrictime("up", "--fleet", str(path), "--dir", str(tmp_path / "d"))
    assert done.returncode == 2
    assert f"fleet {path}: nics[1].address = '10.0.0.300': expected" in done.stderr


def test_figures_are_compared_with_their_targets():
    targets = {
        "rate": Target("1/s", ">=", 10),
        "time": Target("ms", "<=", 5),
        "gone": Target("x", ">=", 1),
        "context": Target("B"),
    }
    found = evaluate(
        targets,
        {
            "rate": 10.0,
            "time": Figure(5.1, note="cold"),
            "gone": Missing("no Java"),
            "context": 3,
            "more": Figure(1, "cores"),
            "bad": float("nan"),
        },
    )
    assert found["rate"] == {"value": 10.0, "unit": "1/s", "target": ">= 10", "met": True}
    assert found["time"] == {"value": 5.1, "unit": "ms", "target": "<= 5", "met": False, "note": "cold"}
    assert found["gone"] == {"value": None, "unit": "x", "target": ">= 1", "met": False, "reason": "no Java"}
    assert found["context"]["met"] is None
    assert found["more"]["unit"] == "cores"
    assert found["bad"]["value"] is None
    json.dumps(found, allow_nan=False)


def test_one_part_of_a_bench_is_compared_with_its_own_targets_alone():
    parted = SimpleNamespace(
        NAME="parted",
        TARGETS=dict.fromkeys("ab", Target("s", "<=", 1)),
        PARTS={"x": ["a"], "y": ["b"]},
        run=lambda progress, quick=False, parts=(): {"a": 0.5} if parts == ["x"] else {"a": 0.5, "b": 2.0},
    )
    assert list(run_bench(parted, print, parts=["x"])["figures"]) == ["a"]
    assert [figure["met"] for figure in run_bench(parted, print)["figures"].values()] == [True, False]
    whole = SimpleNamespace(NAME="whole", TARGETS={}, run=lambda progress, quick=False: {})
    with pytest.raises(TypeError, match="expected no parts"):
        run_bench(whole, print, parts=["x"])


def test_every_bench_states_its_targets():
    listed = json.loads(fabrictime("bench", "--list", "--json").stdout)
    assert sorted(listed) == names()
    assert all(figure["unit"] for figures in listed.values() for figure in figures.values())


def test_tail_without_a_log_asks_whether_up_runs(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    done = fabrictime("tail", "fabric.delays", "--log", f"127.0.0.1:{port}", "--dir", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("; is `fabrictime up` running?")


def test_two_hangups_end_up_in_order_and_two_interrupts_at_once():
    killed = []

    async def send(number):
        stop, killer = asyncio.Event(), types.SimpleNamespace(kill=lambda: killed.append(number))
        up._on_signals(stop, killer)
        for _ in range(2):
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
        assert stop.is_set()

    for number in (signal.SIGHUP, signal.SIGINT):
        asyncio.run(send(number))
    assert killed == [signal.SIGINT]
