"""`fabrictime notify`: one line where it cannot work, and notifications where it can."""

import os
import subprocess
import sys

from typer.testing import CliRunner

from fabrictime.bench.operate._receiver import HttpReceiver
from fabrictime.commands.cli import app
from tests.actuators.notify.deliveries import fresh, log_fixture, put
from tests.waiting import wait_until

__all__ = ["log_fixture"]


def test_settings_without_receivers_are_refused(tmp_path):
    done = CliRunner().invoke(app, ["notify", "--dir", str(tmp_path), "--log", "127.0.0.1:1"])
    assert done.exit_code == 2


def test_a_wrong_receiver_is_named_without_its_value(tmp_path):
    file = tmp_path / "fabrictime.toml"
    file.write_text('[notify.receivers]\nchat = "slack://s3cr3t"\n')
    done = CliRunner().invoke(app, ["config", "check", str(file)])
    assert done.exit_code == 2
    assert "notify.receivers.chat" in done.output
    assert "s3cr3t" not in done.output


def test_the_command_sends_alerts(log, tmp_path):
    with HttpReceiver() as people:
        file = tmp_path / "fabrictime.toml"
        file.write_text(
            "[metrics]\nport = 0\n[notify]\ngroup_wait_s = 0\n"
            f'[notify.receivers.chat]\ntype = "webhook"\nurl = "{people.url}/hook"\n'
        )
        arguments = ["notify", "--config", str(file), "--log", log.bootstrap, "--dir", str(tmp_path)]
        process = subprocess.Popen(
            [sys.executable, "-m", "fabrictime", *arguments],
            stderr=subprocess.PIPE,
            env=os.environ | {"NOTIFY_SOCKET": ""},
        )
        try:
            put(log, fresh())
            wait_until(lambda: people.received or process.poll() is not None)
            assert people.received
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors.decode()
    assert people.url.encode() not in errors
